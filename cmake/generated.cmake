# The page that the server has at /, as a constant.
set(FACET_PAGE_HEADER ${CMAKE_BINARY_DIR}/generated/facet_page.h)
add_custom_command(OUTPUT ${FACET_PAGE_HEADER}
                   COMMAND ${CMAKE_COMMAND} -DPAGE=${CMAKE_SOURCE_DIR}/src/server/page/index.html -DOUT=${FACET_PAGE_HEADER}
                           -P ${CMAKE_SOURCE_DIR}/cmake/page.cmake
                   DEPENDS ${CMAKE_SOURCE_DIR}/src/server/page/index.html ${CMAKE_SOURCE_DIR}/cmake/page.cmake VERBATIM)
target_sources(facet_server PRIVATE ${FACET_PAGE_HEADER})
target_include_directories(facet_server PRIVATE ${CMAKE_BINARY_DIR}/generated)
add_custom_target(facet_commit COMMAND ${CMAKE_COMMAND} -DSOURCE=${CMAKE_SOURCE_DIR} -DOUT=${CMAKE_BINARY_DIR}/generated/facet_commit.h
                  -P ${CMAKE_SOURCE_DIR}/cmake/commit.cmake BYPRODUCTS ${CMAKE_BINARY_DIR}/generated/facet_commit.h VERBATIM)
add_dependencies(facet_app facet_commit)
target_include_directories(facet_app PRIVATE ${CMAKE_BINARY_DIR}/generated)
