# One file per instruction set, chosen at run time; nothing else may use these instructions.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")  # wide vectors among the functions of one file
  set_source_files_properties(src/backend/cpu/simd_scalar.cpp PROPERTIES COMPILE_OPTIONS "-Wno-psabi")
endif()
# Under sanitizers: the widest vectors, which tests of whole models use, are checked where they write and in arithmetic; their
# reads too would take a compiler minutes and those tests twice as long. The same kernels in AVX2 and scalar code are checked
# in reads as well, and the end of the weights of all is a page that cannot be read (Matmul.ReadsNothingBehindItsRows).
set(FACET_AVX2_FLAGS "-mavx2;-mfma;-mf16c")
set(FACET_AVX512_FLAGS "${FACET_AVX2_FLAGS};-mavx512f;-mavx512bw;-mavx512dq;-mavx512vl;-mprefer-vector-width=512;-Wno-maybe-uninitialized;-Wno-uninitialized")
if(FACET_FUZZ)
  string(APPEND FACET_AVX2_FLAGS ";-fno-sanitize=null,alignment,object-size,vptr,pointer-overflow")
  string(APPEND FACET_AVX512_FLAGS ";-fno-sanitize=null,alignment,object-size,vptr,pointer-overflow;-mllvm;-asan-instrument-reads=0")
endif()
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  set_source_files_properties(src/backend/cpu/simd_avx2.cpp PROPERTIES COMPILE_OPTIONS "${FACET_AVX2_FLAGS}")
  set_source_files_properties(src/backend/cpu/simd_avx512vnni.cpp PROPERTIES COMPILE_OPTIONS "${FACET_AVX512_FLAGS};-mavx512vnni")
  set_source_files_properties(src/backend/cpu/simd_amx.cpp PROPERTIES COMPILE_OPTIONS "${FACET_AVX512_FLAGS};-mamx-tile;-mamx-int8")
  # -Wno-...: GCC 12 warns about its own headers (PR 105593).
endif()

# Loops over rows and blocks, which -O2 does not vectorise.
foreach(name formats backend)
  target_compile_options(facet_${name} PRIVATE $<$<CONFIG:Release>:-O3> $<$<CONFIG:Debug>:-O2>)
endforeach()
