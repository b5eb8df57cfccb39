# libfacet: the engine for other programs (include/facet.h, docs/embedding.md).
include(cmake/sources/capi.cmake)
list(TRANSFORM facet_sources PREPEND ${CMAKE_SOURCE_DIR}/src/capi/)
add_library(facet_shared SHARED ${facet_sources})
set_target_properties(facet_shared PROPERTIES OUTPUT_NAME facet VERSION ${PROJECT_VERSION} SOVERSION 1 LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}
                      CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)
target_include_directories(facet_shared PUBLIC ${CMAKE_SOURCE_DIR}/include)
target_link_libraries(facet_shared PRIVATE facet_compose facet_hub)
# Type information of the standard library is visible whatever the flags say: the list decides.
target_link_options(facet_shared PRIVATE -Wl,--version-script=${CMAKE_SOURCE_DIR}/src/capi/exports.map -Wl,-z,defs)
set_target_properties(facet_shared PROPERTIES LINK_DEPENDS ${CMAKE_SOURCE_DIR}/src/capi/exports.map)
