#pragma once

namespace facet::cuda {

// cuBLASLt is opened when it is first asked for, not linked: a program starts without it (540 MB), and then computes
// long prompts by its own kernels.
bool has_cublas_lt();
const char* cublas_lt_name();  // as the system's loader knows it, of the version that this program was built with

}  // namespace facet::cuda
