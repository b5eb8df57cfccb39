# The CUDA language, and the sources that know of it. Included before the libraries, where FACET_CUDA is on.
if(NOT CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES 90a)  # 80, 86, 89, 90a, 120: -DCMAKE_CUDA_ARCHITECTURES="86;89"
endif()
include(cmake/cuda_architectures.cmake)
enable_language(CUDA)
find_package(CUDAToolkit REQUIRED)
set(CMAKE_CUDA_STANDARD 20)
if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # older CMake does not know that newer compilers have it
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
endif()

# What speaks to the GPU, or asks whether it can (#if FACET_CUDA), and no other source, is compiled otherwise: the rest
# is shared with a build without CUDA. The lists are those of cmake/sources.
function(facet_cuda_options folder)
  list(TRANSFORM facet_cuda_aware PREPEND src/${folder}/ OUTPUT_VARIABLE aware)
  list(TRANSFORM facet_cuda_sources PREPEND src/${folder}/ OUTPUT_VARIABLE speaks)
  list(FILTER speaks INCLUDE REGEX "\\.cpp$")
  set_source_files_properties(${aware} PROPERTIES COMPILE_DEFINITIONS FACET_CUDA=1)
  set_source_files_properties(${aware} ${speaks} PROPERTIES COMPILE_OPTIONS "-isystem;${CUDAToolkit_INCLUDE_DIRS}")
endfunction()
