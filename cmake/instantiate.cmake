# Explicit instantiations of CUDA kernels, one file each so that they compile beside each other, written into the build
# folder from this table. Kernels and their headers are in the .cuh files of src/backend/cuda/kernels.
function(facet_instantiate folder name header)
  set(text "// Instantiates ${folder}/${header}.cuh, where the kernel and its header are.\n#include <algorithm>\n\n")
  string(APPEND text "#include \"backend/cuda/kernels/${folder}/${header}.cuh\"\n\nnamespace facet::cuda {\n")
  foreach(declaration ${ARGN})
    string(APPEND text "template ${declaration};\n")
  endforeach()
  string(APPEND text "}  // namespace facet::cuda\n")
  set(file ${CMAKE_BINARY_DIR}/generated/kernels/${folder}/${name}.cu)
  file(CONFIGURE OUTPUT ${file} CONTENT "${text}" @ONLY)  # written if it changes
  target_sources(facet_backend PRIVATE ${file})
endfunction()

# Attention: K and V types that a cache may have apart, and types that a row of both may have.
set(pairs f16/kF16/kF16 q4_0/kQ4_0/kQ4_0 q8_0/kQ8_0/kQ8_0 q8_0_q4_0/kQ8_0/kQ4_0 q8_0_tq3_0/kQ8_0/kTQ3_0
    tq3_0/kTQ3_0/kTQ3_0)
foreach(pair ${pairs})
  string(REPLACE "/" ";" pair ${pair})
  list(GET pair 0 name)
  list(GET pair 1 k)
  list(GET pair 2 v)
  facet_instantiate(attention decode_${name} decode
    "bool attend_decode<KvType::${k}, KvType::${v}>(cudaStream_t, const AttendParams&, int)")
  facet_instantiate(attention prefill_${name} prefill
    "bool attend_prefill<KvType::${k}, KvType::${v}>(cudaStream_t, const AttendParams&)")
endforeach()
foreach(type kF16 kQ4_0 kQ8_0 kTQ3_0)
  string(SUBSTRING ${type} 1 -1 name)
  string(TOLOWER ${name} name)
  facet_instantiate(attention decode_shared_${name} decode
    "bool attend_decode_shared<KvType::${type}>(cudaStream_t, const AttendParams&, int)")
  facet_instantiate(attention prefill_shared_${name} prefill_shared
    "bool attend_prefill_shared<KvType::${type}>(cudaStream_t, const AttendParams&)")
endforeach()

# Products: inputs in one or two bytes, and the row counts and inputs of the kernel for few rows.
foreach(two false/byte true/two_bytes)
  string(REPLACE "/" ";" two ${two})
  list(GET two 0 is_two)
  list(GET two 1 name)
  facet_instantiate(matmul prompt_${name} prompt "void launch_prompt<${is_two}>(cudaStream_t, Tile, PromptArgs&)")
  facet_instantiate(matmul wide_${name} wide "void launch_wide<${is_two}>(cudaStream_t, const WideArgs&, int)")
endforeach()
foreach(input kBf16/bf16 kByte/byte kTwoBytes/two_bytes)
  string(REPLACE "/" ";" input ${input})
  list(GET input 0 type)
  list(GET input 1 name)
  set(declarations)
  foreach(rows 1 8 16)
    foreach(paired false true)
      list(APPEND declarations "void launch_skinny<${rows}, Input::${type}, ${paired}>(cudaStream_t, SkinnyArgs&, int)")
    endforeach()
  endforeach()
  facet_instantiate(matmul skinny_${name} skinny ${declarations})
endforeach()

# Products of many rows, and of experts of many tokens, straight from codes.
foreach(type kQ4_K kQ5_K kQ6_K kQ4_0 kQ5_0 kQ8_0)
  string(SUBSTRING ${type} 1 -1 name)
  string(TOLOWER ${name} name)
  facet_instantiate(moe grouped_codes_${name} grouped_codes
    "void launch_grouped_codes<Tile::${type}>(cudaStream_t, const CodesArgs&, int, bool)")
  facet_instantiate(matmul gemm_codes_${name} gemm_codes
    "void launch_gemm_codes<Tile::${type}>(cudaStream_t, const GemmCodesArgs&, bool)")
endforeach()
