#pragma once
#include <cuda_runtime.h>

#include <cstdint>

// What the current GPU can do, measured: the ceilings that benches print beside their figures.
namespace facet::cuda {

// The compute capability of this program's code that the current GPU runs: 90 is 9.0; 0: there is none.
int code_version();
bool has_warpgroup_code();  // it has wgmma (sm_90a)
double read_gbps();         // a stream of 4 GiB (less on small cards), the best of several launch shapes
double bf16_tflops();       // an 8192^3 product of random numbers, by gemm.cu or cuBLASLt; 0 without either
// Random rows for a cache: any bytes are codes, and the 16-bit words are f16 of magnitude 1/8 to 1/4.
void fill_random_rows(cudaStream_t, void* p, int64_t bytes, uint32_t seed);
void pass_time(cudaStream_t, double ms);  // delays what follows in the stream

}  // namespace facet::cuda
