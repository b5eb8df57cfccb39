#include "base/last_memory.h"

#include <sys/mman.h>

#include <atomic>
#include <cstddef>
#include <exception>
#include <new>

namespace facet {
namespace {

// What is left of a body of 8 MiB that is one array: 16 bytes for each value of two, and as much while a list of them
// grows.
constexpr size_t kBytes = size_t(128) << 20;

std::atomic<void*> g_kept{nullptr};
thread_local int t_must = 0;

void ran_out() {
  if (t_must > 0 || std::uncaught_exceptions() > 0)
    if (void* const kept = g_kept.exchange(nullptr)) {
      ::munmap(kept, kBytes);
      return;  // and the allocation is tried again
    }
  throw std::bad_alloc();
}

}  // namespace

void keep_last_memory() {
  std::set_new_handler(ran_out);
  if (g_kept.load()) return;
  void* const p = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) return;
  void* none = nullptr;
  if (!g_kept.compare_exchange_strong(none, p)) ::munmap(p, kBytes);
}

MayNotFail::MayNotFail() { ++t_must; }
MayNotFail::~MayNotFail() { --t_must; }

}  // namespace facet
