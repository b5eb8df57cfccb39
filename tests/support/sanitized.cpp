// What LeakSanitizer is not told of by others: LLVM's OpenMP runtime keeps its threads' memory until the process ends.
extern "C" const char* __lsan_default_suppressions();
extern "C" const char* __lsan_default_suppressions() { return "leak:libomp.so"; }
