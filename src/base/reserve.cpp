#include "base/reserve.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <new>
#include <string>
#include <system_error>

namespace facet {
namespace {

constexpr double kMiB = 1 << 20;
const char* const kRaise = "use a smaller context (-c) or model, or raise the address-space limit (ulimit -v)";

uint64_t address_space_limit() {  // 0: none
  rlimit limit{};
  return ::getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY ? limit.rlim_cur : 0;
}

}  // namespace

std::string memory_left() {
  const uint64_t limit = address_space_limit();
  if (limit == 0) return fmt::format("{:.1f} MiB of memory are free", double(available_memory()) / kMiB);
  uint64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  const uint64_t used = std::min(limit, pages * uint64_t(::sysconf(_SC_PAGESIZE)));
  return fmt::format("{:.1f} of {:.1f} MiB of address space are left", double(limit - used) / kMiB,
                     double(limit) / kMiB);
}

Error cannot_have(std::string where, const char* doing, uint64_t bytes, std::string hint) {
  const char* const why = std::strerror(errno);
  return {std::move(where),
          fmt::format("cannot {} {:.1f} MiB: {}; {}", doing, double(bytes) / kMiB, why, memory_left()),
          std::move(hint)};
}

Error error_of(const std::exception& e) {
  if (dynamic_cast<const std::bad_alloc*>(&e)) return {"", "out of memory: " + memory_left(), kRaise};
  if (const auto* s = dynamic_cast<const std::system_error*>(&e);
      s && s->code() == std::errc::resource_unavailable_try_again)
    return {"", "a thread cannot begin: " + memory_left(),
            "raise the limits of address space (ulimit -v) and of threads (ulimit -u), or use fewer (--threads)"};
  return {"", e.what(), ""};
}

Result<ReservedMemory> ReservedMemory::create(size_t bytes) {
  ReservedMemory m;
  if (bytes == 0) return m;
  void* p = ::mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) return cannot_have("memory", "reserve", bytes, kRaise);
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
    return cannot_have("memory", "commit", end - begin,
                       "lower the context (-c), choose a smaller --kv-k/--kv-v type, or close other programs");
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
  if (const uint64_t space = address_space_limit(); space > 0) available = std::min(available, space);
  return available;
}

}  // namespace facet
