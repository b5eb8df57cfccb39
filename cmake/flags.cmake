# Compilers, and what every source is compiled and linked with.

set(CMAKE_CXX_FLAGS_RELEASE "-O2 -DNDEBUG")  # kernels ask for more themselves
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR})

add_library(facet_flags INTERFACE)
target_include_directories(facet_flags INTERFACE ${CMAKE_SOURCE_DIR}/src)
# -ffp-contract=off: a row's bits must not depend on which loop the compiler chose to fuse.
target_compile_options(facet_flags INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wshadow;-Wnon-virtual-dtor;$<$<BOOL:${FACET_WERROR}>:-Werror>;-ffp-contract=off>
  $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall;--expt-relaxed-constexpr;--expt-extended-lambda;$<$<BOOL:${FACET_WERROR}>:-Werror=all-warnings>>)
target_compile_definitions(facet_flags INTERFACE FACET_VERSION="${PROJECT_VERSION}")
# {fmt} is part of the program: its large functions are in base/fmt.cpp, or, with a {fmt} that this file does not know, in
# every source, which takes a compiler three times as long.
find_package(fmt REQUIRED)
if(fmt_VERSION VERSION_GREATER_EQUAL 9 AND fmt_VERSION VERSION_LESS 10)
  set(FACET_FMT SPDLOG_FMT_EXTERNAL)
else()
  set(FACET_FMT FMT_HEADER_ONLY SPDLOG_FMT_EXTERNAL_HO)
endif()
target_compile_definitions(facet_flags INTERFACE ${FACET_FMT} SPDLOG_COMPILED_LIB)  # base/spdlog.cpp
target_link_options(facet_flags INTERFACE -static-libgcc -static-libstdc++)
find_package(Threads REQUIRED)
target_link_libraries(facet_flags INTERFACE Threads::Threads ${CMAKE_DL_LIBS})
if(FACET_SANITIZE OR FACET_FUZZ)
  target_compile_options(facet_flags INTERFACE -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer)
  target_link_options(facet_flags INTERFACE -fsanitize=address,undefined)
endif()
