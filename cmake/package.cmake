# `cmake --install` and CPack: the program, its models, licence, manual page and completions. scripts/package.sh makes
# the packages of the CPU program, and of the CUDA program.
include(GNUInstallDirs)

# The manual page and the completions are written by a program that has the same commands and options.
add_executable(facet_manual ${CMAKE_SOURCE_DIR}/tools/manual/manual.cpp ${CMAKE_SOURCE_DIR}/tools/manual/command_table.cpp
               ${CMAKE_SOURCE_DIR}/tools/manual/completions.cpp)
target_link_libraries(facet_manual PRIVATE facet_app)
set(FACET_MANUAL_DIR ${CMAKE_BINARY_DIR}/manual)
file(MAKE_DIRECTORY ${FACET_MANUAL_DIR})
set(manual_files ${FACET_MANUAL_DIR}/facet.1 ${FACET_MANUAL_DIR}/facet.bash ${FACET_MANUAL_DIR}/_facet
    ${FACET_MANUAL_DIR}/facet.fish)
add_custom_command(OUTPUT ${manual_files}
                   COMMAND facet_manual ${FACET_MANUAL_DIR} DEPENDS facet_manual VERBATIM)
add_custom_target(facet_manual_files ALL DEPENDS ${manual_files})

# src/app/paths.cpp finds the models relative to the program: bin/ and share/facet/models/.
file(GLOB models CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/models/*.gguf ${CMAKE_SOURCE_DIR}/models/*-eval.jsonl
     ${CMAKE_SOURCE_DIR}/models/*.md)
install(TARGETS facet RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(FILES ${models} DESTINATION ${CMAKE_INSTALL_DATADIR}/facet/models)
install(FILES ${CMAKE_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/facet RENAME copyright)
file(GLOB texts CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/licenses/*)
install(FILES ${texts} DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/facet/licenses)
install(FILES ${FACET_MANUAL_DIR}/facet.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
install(FILES ${FACET_MANUAL_DIR}/facet.bash DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions RENAME facet)
install(FILES ${FACET_MANUAL_DIR}/_facet DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/vendor-completions)
install(FILES ${FACET_MANUAL_DIR}/facet.fish DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d)

set(CPACK_GENERATOR DEB TZST)
set(CPACK_PACKAGE_NAME facet)
set(CPACK_PACKAGE_VENDOR "the facet authors")
set(CPACK_PACKAGE_CONTACT "the facet authors <facet@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "run Gemma 4 models from GGUF files")
set(CPACK_PACKAGE_DESCRIPTION "Chat, server and tools for Gemma 4 models in GGUF files, on a CPU, with speculative
decoding that never changes the text. A small model comes with it.")
string(TOLOWER "facet-${PROJECT_VERSION}-${CMAKE_SYSTEM_NAME}-${CMAKE_SYSTEM_PROCESSOR}" CPACK_PACKAGE_FILE_NAME)
if(FACET_CUDA)
  set(CPACK_PACKAGE_NAME facet-cuda)
  string(APPEND CPACK_PACKAGE_DESCRIPTION " Runs on NVIDIA GPUs of compute capability 8.0 and newer.")
  string(REPLACE "facet-" "facet-cuda-" CPACK_PACKAGE_FILE_NAME "${CPACK_PACKAGE_FILE_NAME}")
  set(CPACK_DEBIAN_PACKAGE_PROVIDES facet)
  set(CPACK_DEBIAN_PACKAGE_CONFLICTS facet)
  set(CPACK_DEBIAN_PACKAGE_REPLACES facet)
  set(CPACK_DEBIAN_PACKAGE_RECOMMENDS "libcublas-${CUDAToolkit_VERSION_MAJOR}-${CUDAToolkit_VERSION_MINOR}")
endif()
set(CPACK_STRIP_FILES ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
# tests/package/package_test.py reads the program: nothing newer, and no other library.
set(CPACK_DEBIAN_PACKAGE_DEPENDS "libc6 (>= 2.36)")
# Opened when something is downloaded, no sooner.
list(APPEND CPACK_DEBIAN_PACKAGE_RECOMMENDS "libcurl4 | libcurl4t64" ca-certificates)
string(REPLACE ";" ", " CPACK_DEBIAN_PACKAGE_RECOMMENDS "${CPACK_DEBIAN_PACKAGE_RECOMMENDS}")
set(CPACK_THREADS 0)
include(CPack)
