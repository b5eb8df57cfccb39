#pragma once
#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

namespace facet::test {

// A terminal with the program in it.
class Terminal {
 public:
  explicit Terminal(std::vector<const char*> args, const std::vector<std::pair<const char*, const char*>>& env = {}) {
    args.insert(args.begin(), FACET_PROGRAM);
    args.push_back(nullptr);
    pid_ = ::forkpty(&fd_, nullptr, nullptr, nullptr);
    if (pid_ == 0) {
      ::setenv("TERM", "xterm", 1);
      ::unsetenv("NO_COLOR");
      for (const auto& [name, value] : env) ::setenv(name, value, 1);
      ::execv(FACET_PROGRAM, const_cast<char**>(args.data()));
      ::_exit(127);
    }
  }
  ~Terminal() {
    ::close(fd_);
    if (pid_ < 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  // In pieces, reading in between: a terminal's buffers hold a few thousand bytes either way.
  void type(const std::string& s) {
    for (size_t at = 0; at < s.size();) {
      pollfd p{fd_, POLLIN | POLLOUT, 0};
      ASSERT_GT(::poll(&p, 1, 10000), 0);
      if (p.revents & POLLIN) {
        char buffer[4096];
        const ssize_t n = ::read(fd_, buffer, sizeof buffer);
        ASSERT_GT(n, 0);
        seen_.append(buffer, size_t(n));
      } else {
        const ssize_t n = ::write(fd_, s.data() + at, std::min<size_t>(s.size() - at, 256));
        ASSERT_GT(n, 0);
        at += size_t(n);
        ::usleep(1000);
      }
    }
  }
  // Reads until `text` has appeared since the last call; false after ten seconds.
  bool wait_for(const std::string& text) {
    for (const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
         std::chrono::steady_clock::now() < end;) {
      if (const size_t at = seen_.find(text, from_); at != std::string::npos) {
        from_ = at + text.size();
        return true;
      }
      pollfd p{fd_, POLLIN, 0};
      if (::poll(&p, 1, 100) <= 0) continue;
      char buffer[4096];
      const ssize_t n = ::read(fd_, buffer, sizeof buffer);
      if (n <= 0) return false;
      seen_.append(buffer, size_t(n));
    }
    return false;
  }
  // Of the program, once it has ended; as a shell tells it.
  int exit_code() {
    int status = 0;
    if (::waitpid(pid_, &status, 0) != pid_) return -1;
    pid_ = -1;
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  }
  const std::string& seen() const { return seen_; }

 private:
  int fd_ = -1;
  pid_t pid_ = -1;
  std::string seen_;
  size_t from_ = 0;
};

}  // namespace facet::test
