/* For LD_PRELOAD: a kernel traps on the GPU in the process that has the word, when the file appears. No part of the program.
 *
 * TRAP_WORD  only a process that has this word on its command line
 * TRAP_FILE  the file; it is removed before the kernel starts
 * The kernel runs in the process's own context, so every later call of it fails, as after a kernel of its own. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char kernel[] = ".version 7.0\n.target sm_80\n.address_size 64\n.visible .entry t()\n{\ntrap;\nret;\n}\n";

static void fire(void) {
  void *driver = dlopen("libcuda.so.1", RTLD_NOW), *context = NULL, *module = NULL, *function = NULL;
  if (!driver) return;
#define CALL(name, types, ...)                                                     \
  do {                                                                             \
    int(*f) types = (int(*) types)dlsym(driver, #name);                            \
    const int r = f ? f(__VA_ARGS__) : -1;                                         \
    if (r != 0) fprintf(stderr, "trap_kernel: %s gave %d\n", #name, r);            \
  } while (0)
  typedef unsigned u;
  CALL(cuInit, (u), 0);
  CALL(cuDevicePrimaryCtxRetain, (void**, int), &context, 0);
  CALL(cuCtxSetCurrent, (void*), context);
  CALL(cuModuleLoadData, (void**, const void*), &module, kernel);
  CALL(cuModuleGetFunction, (void**, void*, const char*), &function, module, "t");
  CALL(cuLaunchKernel, (void*, u, u, u, u, u, u, u, void*, void**, void**), function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL);
#undef CALL
}

static void* watch(void* path) {
  for (;; usleep(1000))
    if (unlink(path) == 0) fire();
  return NULL;
}

__attribute__((constructor)) static void begin(void) {
  const char *word = getenv("TRAP_WORD"), *path = getenv("TRAP_FILE");
  char line[65536];
  const int in = open("/proc/self/cmdline", O_RDONLY);
  const ssize_t n = in < 0 ? 0 : read(in, line, sizeof line - 1);
  close(in);
  int meant = 0;
  for (ssize_t i = 0; word && path && i < n; i += (ssize_t)strlen(line + i) + 1) meant |= strcmp(line + i, word) == 0;
  pthread_t t;
  if (meant) pthread_create(&t, NULL, watch, strdup(path));
}
