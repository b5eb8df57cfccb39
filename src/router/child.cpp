#include "router/child.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>

#include "base/pass_socket.h"
#include "tokenizer/json.h"

namespace facet {

namespace asio = boost::asio;
using boost::system::error_code;

namespace {

constexpr int kChildLink = 3;      // the descriptor of the process's end
constexpr int kManyFiles = 65536;  // on a kernel without close_range, all that are looked at
constexpr size_t kMaxLine = 2000;  // bytes of a line that are kept
constexpr auto kReapEvery = std::chrono::milliseconds(5);
constexpr auto kLeaves = std::chrono::seconds(5);     // between the end of the link and of the process
constexpr auto kLastWords = std::chrono::seconds(1);  // for its output to arrive after its end

struct Pair {
  int a = -1, b = -1;
  ~Pair() {
    for (const int fd : {a, b})
      if (fd >= 0) ::close(fd);
  }
  int take_a() { return std::exchange(a, -1); }
};

// Between fork and exec: nothing but system calls, as other threads may hold any lock. Does not return.
[[noreturn]] void become(pid_t parent, int link, int output, char* const* argv) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(127);  // it ended before the line above
  ::setpgid(0, 0);
  ::dup2(output, STDOUT_FILENO);
  ::dup2(output, STDERR_FILENO);
  if (link == kChildLink)
    ::fcntl(link, F_SETFD, 0);
  else
    ::dup2(link, kChildLink);
  // Not the router's port, nor its clients: Asio's sockets are not closed by exec, and a copy would keep them open.
  if (::syscall(SYS_close_range, unsigned(kChildLink + 1), ~0U, 0U) != 0)
    for (int fd = kChildLink + 1; fd < kManyFiles; ++fd) ::close(fd);
  ::execv("/proc/self/exe", argv);
  ::_exit(127);
}

}  // namespace

std::string describe_end(int s) {
  if (WIFSIGNALED(s)) return fmt::format("killed by signal {} ({})", WTERMSIG(s), ::strsignal(WTERMSIG(s)));
  return fmt::format("exit code {}", WIFEXITED(s) ? WEXITSTATUS(s) : -1);
}

Result<std::unique_ptr<Child>> Child::start(asio::io_context& io, const std::vector<std::string>& args,
                                            ChildEvents events) {
  const auto failed = [](const char* what) {
    return Error{"", fmt::format("cannot start a process for the model: {}: {}", what, std::strerror(errno)), ""};
  };
  int fds[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds) != 0) return failed("socketpair");
  Pair link{fds[0], fds[1]};
  if (::pipe2(fds, O_CLOEXEC) != 0) return failed("pipe");
  Pair output{fds[0], fds[1]};
  std::vector<std::string> all = {"facet"};
  all.insert(all.end(), args.begin(), args.end());
  std::vector<char*> argv;
  for (std::string& a : all) argv.push_back(a.data());
  argv.push_back(nullptr);
  const pid_t parent = ::getpid(), pid = ::fork();
  if (pid < 0) return failed("fork");
  if (pid == 0) become(parent, link.b, output.b, argv.data());
  return std::unique_ptr<Child>(new Child(io, pid, link.take_a(), output.take_a(), std::move(events)));
}

Child::Child(asio::io_context& io, pid_t pid, int link, int output, ChildEvents events)
    : events_(std::move(events)),
      pid_(pid),
      link_(io, link),
      output_(io, output),
      timer_(io),
      buffer_(4096),
      packet_(kMaxLinkMessage) {
  error_code ignored;
  link_.non_blocking(true, ignored);
  output_.non_blocking(true, ignored);
  read_link();
  read_output();
}

Child::~Child() {
  *alive_ = false;
  if (reaped_) return;
  ::kill(pid_, SIGKILL);
  while (::waitpid(pid_, &status_, 0) < 0 && errno == EINTR) {
  }
}

Result<int> Child::connect() {
  int fds[2];
  if (reaped_ || reaping_ || ::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) != 0)
    return Error{"", "the model's process takes no connection", ""};
  Pair pair{fds[0], fds[1]};
  if (!send_socket(link_.native_handle(), pair.b)) return Error{"", "the model's process takes no connection", ""};
  return pair.take_a();
}

void Child::terminate() {
  if (!reaped_) ::kill(pid_, SIGTERM);
}
void Child::kill() {
  if (!reaped_) ::kill(pid_, SIGKILL);
}

void Child::read_link() {
  link_.async_wait(asio::posix::stream_descriptor::wait_read, [this, alive = alive_](error_code ec) {
    if (!*alive) return;
    for (;;) {
      const ssize_t n = ec ? 0 : ::recv(link_.native_handle(), packet_.data(), packet_.size(), MSG_DONTWAIT);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return read_link();
      if (n <= 0) break;
      if (const auto j = parse_link_message({packet_.data(), size_t(n)}); j && events_.told) events_.told(*j);
      if (!*alive) return;
    }
    reaping_ = true;
    link_ended_ = std::chrono::steady_clock::now();
    reap();
  });
}

void Child::read_output() {
  output_.async_read_some(asio::buffer(buffer_), [this, alive = alive_](error_code ec, size_t n) {
    if (!*alive) return;
    take_output(n);
    if (ec) {
      output_ended_ = true;
      if (!line_.empty()) take_output(0), buffer_[0] = '\n', take_output(1);
      return;
    }
    read_output();
  });
}

void Child::take_output(size_t n) {
  for (size_t i = 0; i < n; ++i) {
    if (buffer_[i] != '\n') {
      if (line_.size() < kMaxLine) line_ += buffer_[i];
      continue;
    }
    last_line_ = std::exchange(line_, {});
    if (events_.said && !last_line_.empty()) events_.said(last_line_);
  }
}

void Child::reap() {
  const auto since = std::chrono::steady_clock::now() - link_ended_;
  if (!reaped_) {
    const pid_t p = ::waitpid(pid_, &status_, WNOHANG);
    if (p == pid_ || (p < 0 && errno == ECHILD)) reaped_ = true;
    if (!reaped_ && since > kLeaves) ::kill(pid_, SIGKILL);
  }
  if (reaped_ && (output_ended_ || since > kLastWords)) {
    if (const auto ended = std::exchange(events_.ended, nullptr)) ended(status_, last_line_);
    return;
  }
  timer_.expires_after(kReapEvery);
  timer_.async_wait([this, alive = alive_](error_code) {
    if (*alive) reap();
  });
}

}  // namespace facet
