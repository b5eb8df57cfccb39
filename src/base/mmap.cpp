#include "base/mmap.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>

#include "base/files.h"

namespace facet {

void release_pages(std::span<const std::byte> piece) {
  // Whole pages only: those at the ends may belong to a neighbour that is still being read.
  const uintptr_t page = uintptr_t(::sysconf(_SC_PAGESIZE)), at = reinterpret_cast<uintptr_t>(piece.data());
  const uintptr_t begin = (at + page - 1) / page * page, end = (at + piece.size()) / page * page;
  if (begin < end) ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
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
      const int e = errno;
      ::close(fd);
      f.size_ = 0;
      return Error{path, std::string("cannot map: ") + std::strerror(e),
                   "check that the file is on a local disk and that address space is not limited"};
    }
    f.data_ = static_cast<const std::byte*>(p);
  }
  ::close(fd);
  return f;
}

MappedFile::~MappedFile() {
  if (data_) ::munmap(const_cast<std::byte*>(data_), size_);
}

}  // namespace facet
