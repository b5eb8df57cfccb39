#include "backend/cuda/cublas_lt.h"

#include <cublasLt.h>
#include <dlfcn.h>

#define FACET_TEXT(x) #x
#define FACET_TEXT_OF(x) FACET_TEXT(x)
#define FACET_CUBLAS_LT "libcublasLt.so." FACET_TEXT_OF(CUBLAS_VER_MAJOR)

namespace facet::cuda {
namespace {

void* library() {
  static void* const found = [] {
    for (const char* name : {FACET_CUBLAS_LT, "/usr/local/cuda/lib64/" FACET_CUBLAS_LT})
      if (void* p = ::dlopen(name, RTLD_NOW | RTLD_LOCAL)) return p;
    return static_cast<void*>(nullptr);
  }();
  return found;
}

// A function of the library with the type of F.
template <class F>
F* find(F*, const char* name) {
  return library() ? reinterpret_cast<F*>(::dlsym(library(), name)) : nullptr;
}

}  // namespace

bool has_cublas_lt() { return find(&cublasLtMatmul, "cublasLtMatmul") != nullptr; }
const char* cublas_lt_name() { return FACET_CUBLAS_LT; }

}  // namespace facet::cuda

// The functions that the program calls by the library's own names, passed on. Without the library they return a status.
#define FACET_PASS_ON(name, parameters, ...)                   \
  cublasStatus_t name parameters {                             \
    static auto* const f = facet::cuda::find(&name, #name);    \
    return f ? f(__VA_ARGS__) : CUBLAS_STATUS_NOT_INITIALIZED; \
  }
extern "C" {
FACET_PASS_ON(cublasLtCreate, (cublasLtHandle_t * handle), handle)
FACET_PASS_ON(cublasLtDestroy, (cublasLtHandle_t handle), handle)
FACET_PASS_ON(cublasLtMatmulDescCreate, (cublasLtMatmulDesc_t * op, cublasComputeType_t compute, cudaDataType_t scale),
              op, compute, scale)
FACET_PASS_ON(cublasLtMatmulDescDestroy, (cublasLtMatmulDesc_t op), op)
FACET_PASS_ON(cublasLtMatmulDescSetAttribute,
              (cublasLtMatmulDesc_t op, cublasLtMatmulDescAttributes_t attribute, const void* value, size_t bytes), op,
              attribute, value, bytes)
FACET_PASS_ON(cublasLtMatrixLayoutCreate,
              (cublasLtMatrixLayout_t * layout, cudaDataType type, uint64_t rows, uint64_t cols, int64_t stride),
              layout, type, rows, cols, stride)
FACET_PASS_ON(cublasLtMatrixLayoutDestroy, (cublasLtMatrixLayout_t layout), layout)
FACET_PASS_ON(cublasLtMatmulPreferenceCreate, (cublasLtMatmulPreference_t * preference), preference)
FACET_PASS_ON(cublasLtMatmulPreferenceDestroy, (cublasLtMatmulPreference_t preference), preference)
FACET_PASS_ON(cublasLtMatmulPreferenceSetAttribute,
              (cublasLtMatmulPreference_t preference, cublasLtMatmulPreferenceAttributes_t attribute, const void* value,
               size_t bytes),
              preference, attribute, value, bytes)
FACET_PASS_ON(cublasLtMatmulAlgoGetHeuristic,
              (cublasLtHandle_t handle, cublasLtMatmulDesc_t op, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
               cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d, cublasLtMatmulPreference_t preference, int wanted,
               cublasLtMatmulHeuristicResult_t found[], int* n_found),
              handle, op, a, b, c, d, preference, wanted, found, n_found)
FACET_PASS_ON(cublasLtMatmul,
              (cublasLtHandle_t handle, cublasLtMatmulDesc_t op, const void* alpha, const void* a,
               cublasLtMatrixLayout_t of_a, const void* b, cublasLtMatrixLayout_t of_b, const void* beta, const void* c,
               cublasLtMatrixLayout_t of_c, void* d, cublasLtMatrixLayout_t of_d, const cublasLtMatmulAlgo_t* algorithm,
               void* workspace, size_t bytes, cudaStream_t stream),
              handle, op, alpha, a, of_a, b, of_b, beta, c, of_c, d, of_d, algorithm, workspace, bytes, stream)
}
