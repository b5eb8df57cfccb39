#include "base/mmap.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstring>

#include "base/files.h"
#include "base/reserve.h"

namespace facet {
namespace {

// What a signal's handler may read: the newest mappings, as many as a program has models, drafters and encoders.
struct Known {
  std::atomic<const std::byte*> begin{nullptr}, end{nullptr};
  std::array<char, 512> path{};
};
std::array<Known, 64> g_known;

void remember(const std::byte* p, size_t size, const std::string& path) {
  for (Known& k : g_known) {
    const std::byte* none = nullptr;
    if (!k.begin.compare_exchange_strong(none, p)) continue;
    const size_t n = std::min(path.size(), k.path.size() - 1);
    std::copy_n(path.data(), n, k.path.data());
    k.path[n] = 0;
    k.end = p + size;
    return;
  }
}
void forget(const std::byte* p) {
  for (Known& k : g_known)
    if (k.begin == p) {
      k.end = nullptr, k.begin = nullptr;
      return;
    }
}

void say(const char* text) {
  if (::write(STDERR_FILENO, text, std::strlen(text)) < 0) return;
}
void on_bus_error(int number, siginfo_t* info, void*) {
  const std::byte* const at = static_cast<const std::byte*>(info->si_addr);
  for (const Known& k : g_known)
    if (const std::byte* const end = k.end; end && k.begin <= at && at < end) {
      say("facet: ");
      say(k.path.data());
      say(": expected the file that was opened, found that it was cut short or cannot be read any more: check its "
          "disk, "
          "put it back and start again\n");
      ::_exit(1);
    }
  std::signal(number, SIG_DFL);  // the access is tried again
}

}  // namespace

void tell_of_lost_mappings() {
  struct sigaction a {};
  a.sa_sigaction = on_bus_error;
  a.sa_flags = SA_SIGINFO;
  ::sigaction(SIGBUS, &a, nullptr);
}

void release_pages(std::span<const std::byte> piece) {
  // Whole pages only: those at the ends may belong to a neighbour that is still being read.
  const uintptr_t page = uintptr_t(::sysconf(_SC_PAGESIZE)), at = reinterpret_cast<uintptr_t>(piece.data());
  const uintptr_t begin = (at + page - 1) / page * page, end = (at + piece.size()) / page * page;
  if (begin < end) ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

void populate_pages(std::span<const std::byte> piece) {
#if defined(MADV_POPULATE_READ)
  const uintptr_t page = uintptr_t(::sysconf(_SC_PAGESIZE)), at = reinterpret_cast<uintptr_t>(piece.data());
  const uintptr_t begin = at / page * page;
  if (!piece.empty()) ::madvise(reinterpret_cast<void*>(begin), at + piece.size() - begin, MADV_POPULATE_READ);
#endif
}

Result<MappedFile> MappedFile::open(const std::string& path) {
  auto opened = open_regular(path);
  if (!opened) return opened.error();
  const int fd = *opened;
  struct stat st {};
  if (::fstat(fd, &st) != 0) {
    const int e = errno;
    ::close(fd);
    return Error{path, std::string("cannot read its size: ") + std::strerror(e), "check the disk"};
  }
  MappedFile f;
  f.path_ = path;
  f.size_ = size_t(st.st_size);
  if (f.size_ > 0) {
    void* p = ::mmap(nullptr, f.size_, PROT_READ, MAP_PRIVATE, fd, 0);
    if (p == MAP_FAILED) {
      Error e = cannot_have(path, "map", f.size_,
                            "check that the file is on a local disk and that address space is not limited (ulimit -v)");
      ::close(fd);
      f.size_ = 0;
      return e;
    }
    f.data_ = static_cast<const std::byte*>(p);
    remember(f.data_, f.size_, path);
  }
  ::close(fd);
  return f;
}

MappedFile::~MappedFile() {
  if (!data_) return;
  forget(data_);
  ::munmap(const_cast<std::byte*>(data_), size_);
}

}  // namespace facet
