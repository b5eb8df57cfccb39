// Input: an mmproj file. What is refused says why and what to do; what is accepted can be bound and described.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "backend/cpu/cpu_ref.h"
#include "model/encoder_bind.h"

using namespace facet;

namespace {
void check(const Error& e) {
  if (e.what.empty() || e.hint.empty()) std::abort();
}
}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const int fd = memfd_create("mmproj", 0);
  if (fd < 0 || write(fd, data, size) != ssize_t(size)) std::abort();
  {
    const auto file = MmprojFile::open("/proc/self/fd/" + std::to_string(fd));
    if (!file) {
      check(file.error());
    } else {
      CpuRef b;
      if (describe_encoders(*file).empty()) std::abort();
      if (file->vision())
        if (auto w = bind_vision(b, *file); !w) check(w.error());
      if (file->audio())
        if (auto w = bind_audio(b, *file); !w) check(w.error());
    }
  }
  close(fd);
  return 0;
}
