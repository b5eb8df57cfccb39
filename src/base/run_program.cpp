#include "base/run_program.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace facet {
namespace {

using Clock = std::chrono::steady_clock;
constexpr size_t kMostErr = 4096;
constexpr int kManyFiles = 65536;  // that a kernel before 5.9 closes one by one

struct Fd {
  int fd = -1;
  ~Fd() { close(); }
  void close() {
    if (fd >= 0) ::close(std::exchange(fd, -1));
  }
};

// Between fork and exec: nothing but system calls, as other threads may hold any lock. Does not return.
[[noreturn]] void become(pid_t parent, int in, int out, int err, const ProgramLimits& limits, char* const* argv,
                         char* const* environment) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(127);  // it ended before the line above
  ::dup2(in, STDIN_FILENO);
  ::dup2(out, STDOUT_FILENO);
  ::dup2(err, STDERR_FILENO);
  if (::syscall(SYS_close_range, unsigned(STDERR_FILENO + 1), ~0U, 0U) != 0)
    for (int fd = STDERR_FILENO + 1; fd < kManyFiles; ++fd) ::close(fd);
  const rlimit memory{limits.memory, limits.memory}, none{0, 0};
  ::setrlimit(RLIMIT_AS, &memory);
  ::setrlimit(RLIMIT_CORE, &none);
  ::setrlimit(RLIMIT_FSIZE, &none);  // of files; pipes have no size
  sigset_t empty;
  ::sigemptyset(&empty);
  ::sigprocmask(SIG_SETMASK, &empty, nullptr);
  for (const int s : {SIGPIPE, SIGINT, SIGTERM, SIGHUP}) ::signal(s, SIG_DFL);
  ::execve(argv[0], argv, environment);
  constexpr char kFailed[] = "cannot be executed\n";
  [[maybe_unused]] const ssize_t n = ::write(STDERR_FILENO, kFailed, sizeof kFailed - 1);
  ::_exit(127);
}

std::vector<char*> pointers(std::vector<std::string>& strings) {
  std::vector<char*> out;
  for (std::string& s : strings) out.push_back(s.data());
  out.push_back(nullptr);
  return out;
}

// What there is to read, if anything; false: nothing will come any more.
bool drain(Fd& from, std::string& to) {
  char buffer[65536];
  const ssize_t n = ::read(from.fd, buffer, sizeof buffer);
  if (n > 0) to.append(buffer, size_t(n));
  if (n > 0 || (n < 0 && (errno == EINTR || errno == EAGAIN))) return true;
  from.close();
  return false;
}

// A child in a process group of its own.
class Group {
 public:
  explicit Group(pid_t pid) : pid_(pid) { ::setpgid(pid, pid); }  // the child says so, too: whoever comes first
  ~Group() { end(); }
  bool has_ended() const {
    siginfo_t info = {};
    return ::waitid(P_PID, id_t(pid_), &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid == pid_;
  }
  // Kills what is left of the group, whose number nobody else has before the child is waited for.
  int end() {
    if (pid_ <= 0) return status_;
    ::kill(-pid_, SIGKILL);
    ::kill(pid_, SIGKILL);
    while (::waitpid(pid_, &status_, 0) < 0 && errno == EINTR) {
    }
    pid_ = -1;
    return status_;
  }

 private:
  pid_t pid_;
  int status_ = 0;
};

// Reads until both pipes and the process have ended; an error is the bound that was met.
Status follow(const Group& group, Fd& out, Fd& err, const ProgramLimits& limits, const std::function<bool()>& stop,
              const std::string& name, ProgramOutput& result) {
  const auto end =
      Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(limits.seconds));
  constexpr int kWhile = 100, kBit = 5;  // ms
  while (true) {
    if (stop && stop()) return Error{name, "stopped", ""};
    if (Clock::now() >= end)
      return Error{name, fmt::format("expected an end within {} s, found none", limits.seconds), "give it less to do"};
    // What others of its group still hold open does not count once it has ended and nothing is there to read.
    const bool ended = group.has_ended();
    pollfd fds[2] = {{out.fd, POLLIN, 0}, {err.fd, POLLIN, 0}};
    const bool open = out.fd >= 0 || err.fd >= 0;
    const int n = ::poll(fds, 2, ended ? 0 : open ? kWhile : kBit);
    if (n <= 0 && ended) return Ok{};
    if (n > 0 && fds[0].revents != 0) drain(out, result.out);
    if (n > 0 && fds[1].revents != 0) drain(err, result.err);
    if (result.out.size() > limits.output)
      return Error{name, fmt::format("expected at most {} bytes of output, found more", limits.output),
                   "give it less to do"};
    if (result.err.size() > 2 * kMostErr) result.err.erase(0, result.err.size() - kMostErr);
  }
}

}  // namespace

std::string find_program(std::string_view name) {
  const char* path = std::getenv("PATH");
  std::string_view rest = path ? path : "";
  while (!rest.empty()) {
    const size_t colon = std::min(rest.find(':'), rest.size());
    const std::string file = fmt::format("{}/{}", rest.substr(0, colon), name);
    if (colon > 0 && rest[0] == '/' && ::access(file.c_str(), X_OK) == 0) return file;
    rest.remove_prefix(std::min(colon + 1, rest.size()));
  }
  return "";
}

Result<ProgramOutput> run_program(const std::vector<std::string>& args, const ProgramLimits& limits,
                                  const std::function<bool()>& stop) {
  const std::string& name = args[0];
  const auto failed = [&](const char* what) {
    return Error{name, fmt::format("cannot be started: {}: {}", what, std::strerror(errno)), ""};
  };
  Fd out, err, their_out, their_err, nothing, nobody;
  int fds[2];
  if (::pipe2(fds, O_CLOEXEC) != 0) return failed("pipe");
  out.fd = fds[0], their_out.fd = fds[1];
  if (::pipe2(fds, O_CLOEXEC) != 0) return failed("pipe");
  err.fd = fds[0], their_err.fd = fds[1];
  if (::pipe2(fds, O_CLOEXEC) != 0) return failed("pipe");
  nothing.fd = fds[0], nobody.fd = fds[1];
  nobody.close();  // so that its input ends at once
  std::vector<std::string> words = args, variables;
  for (char* const* v = environ; *v; ++v)
    if (!std::string_view(*v).starts_with("MALLOC_ARENA_MAX=")) variables.emplace_back(*v);
  variables.emplace_back("MALLOC_ARENA_MAX=1");  // else every thread takes 64 MiB of the address space
  const std::vector<char*> argv = pointers(words), environment = pointers(variables);
  const pid_t parent = ::getpid(), pid = ::fork();
  if (pid < 0) return failed("fork");
  if (pid == 0) become(parent, nothing.fd, their_out.fd, their_err.fd, limits, argv.data(), environment.data());
  Group group(pid);
  their_out.close(), their_err.close();
  ProgramOutput result;
  auto ok = follow(group, out, err, limits, stop, name, result);
  const int status = group.end();
  if (!ok) return ok.error();
  result.ok = WIFEXITED(status) && WEXITSTATUS(status) == 0;
  result.end = WIFSIGNALED(status) ? fmt::format("killed by signal {}", WTERMSIG(status))
                                   : fmt::format("exit code {}", WIFEXITED(status) ? WEXITSTATUS(status) : -1);
  return result;
}

}  // namespace facet
