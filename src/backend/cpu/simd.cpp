#include "backend/cpu/simd.h"

#include "base/check.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__x86_64__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace facet {
namespace {

#if defined(__x86_64__)
// AMX-TILE and AMX-INT8, saved by the system for every thread (XCR0), and this process allowed to use them:
// Linux asks to be asked, once for all threads.
bool may_use_amx() {
#if defined(__linux__)
  constexpr unsigned kTile = 1u << 24, kInt8 = 1u << 25, kXsaveOn = 1u << 27, kTileState = 3u << 17;
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & kXsaveOn)) return false;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & (kTile | kInt8)) != (kTile | kInt8)) return false;
  unsigned low = 0, high = 0;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (low & kTileState) == kTileState && syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

// What tiles are of no use for is AVX-512's.
SimdKernels with_amx() {
  SimdKernels k = kAvx512Kernels;
  k.name = kAmxKernels.name;
  k.gemv_tok = kAmxKernels.gemv_tok;
  k.panel = kAmxKernels.panel;
  for (int t = 0; t < SimdKernels::kTypes; ++t) k.pack[t] = kAmxKernels.pack[t], k.gemm[t] = kAmxKernels.gemm[t];
  return k;
}
#endif

}  // namespace

bool has_isa(CpuIsa isa) {
  if (isa == CpuIsa::kAuto || isa == CpuIsa::kScalar) return true;
#if defined(__x86_64__)
  unsigned a, b, c, d;  // __builtin_cpu_supports does not know f16c everywhere
  const bool f16c = __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && f16c;
  if (isa == CpuIsa::kAvx2) return avx2;
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                      __builtin_cpu_supports("avx512vnni");
  if (isa == CpuIsa::kAvx512) return avx512;
  static const bool amx = may_use_amx();
  return avx512 && amx;
#else
  return false;
#endif
}

const char* isa_name(CpuIsa isa) {
  constexpr const char* kNames[] = {"auto", "scalar", "avx2", "avx512", "amx"};
  return kNames[int(isa)];
}

const SimdKernels& simd_kernels(CpuIsa isa) {
#if defined(__x86_64__)
  if (isa == CpuIsa::kAuto) {
    isa = CpuIsa::kScalar;
    for (const CpuIsa better : {CpuIsa::kAvx2, CpuIsa::kAvx512, CpuIsa::kAmx})
      if (has_isa(better)) isa = better;
  }
  static const SimdKernels amx = with_amx();
  if (isa == CpuIsa::kAvx2) return kAvx2Kernels;
  if (isa == CpuIsa::kAvx512) return kAvx512Kernels;
  if (isa == CpuIsa::kAmx) return amx;
#endif
  CHECK(isa == CpuIsa::kAuto || isa == CpuIsa::kScalar, "instruction set {} is not in this program", int(isa));
  return kScalarKernels;
}

}  // namespace facet
