#include "backend/cpu/simd.h"

#include "base/check.h"

namespace facet {

bool has_isa(CpuIsa isa) {
  if (isa == CpuIsa::kAuto || isa == CpuIsa::kScalar) return true;
#if defined(__x86_64__)
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  if (isa == CpuIsa::kAvx2) return avx2;
  return avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni");
#else
  return false;
#endif
}

const char* isa_name(CpuIsa isa) { return isa == CpuIsa::kAuto ? "auto" : simd_kernels(isa).name; }

const SimdKernels& simd_kernels(CpuIsa isa) {
#if defined(__x86_64__)
  if (isa == CpuIsa::kAuto) isa = has_isa(CpuIsa::kAvx512) ? CpuIsa::kAvx512 : has_isa(CpuIsa::kAvx2) ? CpuIsa::kAvx2 : CpuIsa::kScalar;
  if (isa == CpuIsa::kAvx2) return kAvx2Kernels;
  if (isa == CpuIsa::kAvx512) return kAvx512Kernels;
#endif
  CHECK(isa == CpuIsa::kAuto || isa == CpuIsa::kScalar, "instruction set {} is not in this program", int(isa));
  return kScalarKernels;
}

}  // namespace facet
