#include "base/reserve.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <string>

namespace facet {

Result<ReservedMemory> ReservedMemory::create(size_t bytes) {
  ReservedMemory m;
  if (bytes == 0) return m;
  void* p = ::mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED)
    return Error{"memory",
                 "cannot reserve " + std::to_string(bytes) + " bytes of address space: " + std::strerror(errno),
                 "lower the context (-c), or raise the address-space limit (ulimit -v)"};
  m.data_ = static_cast<std::byte*>(p);
  m.size_ = bytes;
  return m;
}

ReservedMemory::~ReservedMemory() {
  if (data_) ::munmap(data_, size_);
}

Status ReservedMemory::commit(size_t begin, size_t end) {
  const size_t page = size_t(::sysconf(_SC_PAGESIZE));
  begin = begin / page * page;
  end = std::min((end + page - 1) / page * page, (size_ + page - 1) / page * page);
  if (begin >= end) return Ok{};
  bool failed = ::mprotect(data_ + begin, end - begin, PROT_READ | PROT_WRITE) != 0;
#ifdef MADV_POPULATE_WRITE
  // Present now rather than at the first touch inside a step; kernels before 5.14 answer EINVAL and fault later.
  if (!failed && ::madvise(data_ + begin, end - begin, MADV_POPULATE_WRITE) != 0) failed = errno == ENOMEM;
#endif
  if (failed)
    return Error{"memory", "cannot commit " + std::to_string(end - begin) + " bytes: " + std::strerror(errno),
                 "lower the context (-c), choose a smaller --kv-k/--kv-v type, or close other programs"};
  return Ok{};
}

uint64_t available_memory() {
  uint64_t available = 0;
  std::ifstream info("/proc/meminfo");
  for (std::string line; std::getline(info, line);)
    if (line.starts_with("MemAvailable:")) available = std::strtoull(line.c_str() + 13, nullptr, 10) * 1024;
  auto number = [](const char* path) {
    std::ifstream f(path);
    std::string s;
    f >> s;
    return s.empty() || s == "max" ? 0 : std::strtoull(s.c_str(), nullptr, 10);
  };
  const uint64_t limit = number("/sys/fs/cgroup/memory.max"), used = number("/sys/fs/cgroup/memory.current");
  if (limit > 0) available = std::min<uint64_t>(available, limit > used ? limit - used : 0);
  return available;
}

}  // namespace facet
