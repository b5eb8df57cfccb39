/* For LD_PRELOAD: allocation k of one process fails, or all from k on. No part of the program.
 *
 * FAIL_ALLOC_WORD  only a process that has this word on its command line
 * FAIL_ALLOC_FILE  a file of three int64 that the test maps too: left (allocations until one fails; 0: none does),
 *                  sticky (1: all later ones fail as well), failed (how many did)
 * Counted are what malloc() and its relatives are asked for, and anonymous mmap(). */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

extern void* __libc_malloc(size_t);
extern void* __libc_calloc(size_t, size_t);
extern void* __libc_realloc(void*, size_t);
extern void* __libc_memalign(size_t, size_t);
static void* (*real_mmap)(void*, size_t, int, int, int, off_t);
static struct { int64_t left, sticky, failed; } * shared;

__attribute__((constructor)) static void begin(void) {
  real_mmap = (void* (*)(void*, size_t, int, int, int, off_t))dlsym(RTLD_NEXT, "mmap");
  const char *word = getenv("FAIL_ALLOC_WORD"), *path = getenv("FAIL_ALLOC_FILE");
  char line[65536];
  const int in = open("/proc/self/cmdline", O_RDONLY);
  const ssize_t n = in < 0 ? 0 : read(in, line, sizeof line - 1);
  close(in);
  int meant = 0;
  for (ssize_t i = 0; word && path && i < n; i += (ssize_t)strlen(line + i) + 1) meant |= strcmp(line + i, word) == 0;
  const int fd = meant ? open(path, O_RDWR) : -1;
  if (fd < 0) return;
  void* p = real_mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  if (p != MAP_FAILED) shared = p;
}

static int fails(void) {
  if (!shared || __atomic_load_n(&shared->left, __ATOMIC_RELAXED) <= 0) return 0;
  const int64_t left = __atomic_sub_fetch(&shared->left, 1, __ATOMIC_RELAXED);
  if (left > 0) return 0;
  if (__atomic_load_n(&shared->sticky, __ATOMIC_RELAXED))
    __atomic_store_n(&shared->left, 1, __ATOMIC_RELAXED);
  else if (left < 0)
    return 0; /* another thread's was the one */
  __atomic_add_fetch(&shared->failed, 1, __ATOMIC_RELAXED);
  errno = ENOMEM;
  return 1;
}

void* malloc(size_t n) { return fails() ? NULL : __libc_malloc(n); }
void* calloc(size_t n, size_t size) { return fails() ? NULL : __libc_calloc(n, size); }
void* realloc(void* p, size_t n) { return fails() ? NULL : __libc_realloc(p, n); }
void* memalign(size_t align, size_t n) { return fails() ? NULL : __libc_memalign(align, n); }
void* aligned_alloc(size_t align, size_t n) { return memalign(align, n); }
int posix_memalign(void** out, size_t align, size_t n) {
  void* p = memalign(align, n);
  if (!p) return ENOMEM;
  *out = p;
  return 0;
}
void* mmap(void* at, size_t n, int prot, int flags, int fd, off_t offset) {
  if ((flags & MAP_ANONYMOUS) && fails()) return MAP_FAILED;
  if (!real_mmap) real_mmap = (void* (*)(void*, size_t, int, int, int, off_t))dlsym(RTLD_NEXT, "mmap");
  return real_mmap(at, n, prot, flags, fd, offset);
}
