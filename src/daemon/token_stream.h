#pragma once
#include <cstdint>
#include <span>

#include "base/result.h"

namespace facet {

// Token ids for whoever reads an inherited descriptor: int32, little endian, -1 behind the last of a result. A reader
// that is slow is waited for. One that has gone is noticed at the next write, and from then on nothing is written.
class TokenStream {
 public:
  // fd: -1: there is none. An error if it is not open for writing.
  static Result<TokenStream> open(int fd);
  bool is_there() const { return fd_ >= 0; }
  bool lost() const { return lost_; }
  int fd() const { return fd_; }
  void write(std::span<const int32_t> ids);
  void end() {
    const int32_t end = -1;
    write({&end, 1});
  }

 private:
  int fd_ = -1;
  bool lost_ = false;
};

}  // namespace facet
