#pragma once
#include "server/asio.h"  // before other headers of Boost

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "router/link.h"

namespace facet {

// What a model's process does, told on the io_context's thread.
struct ChildEvents {
  std::function<void(const Json&)> told = {};                                     // link.h
  std::function<void(const std::string&)> said = {};                              // a line of its stdout or stderr
  std::function<void(int wait_status, const std::string& last_line)> ended = {};  // once; the last of all
};

// One `facet serve` that answers for one model. It ends with the thread that started it, whatever ends that one
// (PR_SET_PDEATHSIG), and is in a process group of its own: Ctrl-C reaches the router alone.
class Child {
 public:
  // args: of this program, from the name of the command on. The process gets its end of the link as descriptor 3.
  static Result<std::unique_ptr<Child>> start(boost::asio::io_context& io, const std::vector<std::string>& args,
                                              ChildEvents events);
  ~Child();  // kills what still runs, and tells nobody
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  // A connection to its HTTP server; an error: it does not take any.
  Result<int> connect();
  void terminate();  // SIGTERM: it finishes what runs
  void kill();       // SIGKILL

 private:
  Child(boost::asio::io_context& io, pid_t pid, int link, int output, ChildEvents events);
  void read_link();
  void read_output();
  void take_output(std::size_t n);
  void reap();

  ChildEvents events_;
  pid_t pid_;
  boost::asio::posix::stream_descriptor link_, output_;
  boost::asio::steady_timer timer_;
  std::chrono::steady_clock::time_point link_ended_ = {};
  bool reaping_ = false, output_ended_ = false, reaped_ = false;
  int status_ = 0;
  std::string line_, last_line_;
  std::vector<char> buffer_, packet_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

// "killed by signal 9 (Killed)", "exit code 1".
std::string describe_end(int wait_status);

}  // namespace facet
