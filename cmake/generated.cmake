# The page that the server has at /, as a constant: these files in this order.
set(FACET_PAGE_LATE lib/katex.css)
set(FACET_PAGE_STYLES style/base.css style/parts.css style/messages.css style/markdown.css style/small.css)
set(FACET_PAGE_SCRIPTS
    lib/markdown-it.js
    lib/highlight.js
    lib/katex.js.xz
    js/dom.js
    js/state.js
    js/notice.js
    js/conversation.js
    js/store.js
    js/files.js
    js/record.js
    js/tree.js
    js/math.js
    js/code.js
    js/markdown.js
    js/drafted.js
    js/panel.js
    js/messages.js
    js/server.js
    js/answer.js
    js/sidebar.js
    js/settings.js
    js/main.js)
find_package(Python3 REQUIRED COMPONENTS Interpreter)
set(FACET_PAGE_DIR ${CMAKE_SOURCE_DIR}/src/server/page)
set(FACET_PAGE_HEADER ${CMAKE_BINARY_DIR}/generated/facet_page.h)
list(TRANSFORM FACET_PAGE_LATE PREPEND ${FACET_PAGE_DIR}/ OUTPUT_VARIABLE FACET_PAGE_LATE_FILES)
list(TRANSFORM FACET_PAGE_STYLES PREPEND ${FACET_PAGE_DIR}/ OUTPUT_VARIABLE FACET_PAGE_FILES)
list(TRANSFORM FACET_PAGE_SCRIPTS PREPEND ${FACET_PAGE_DIR}/ OUTPUT_VARIABLE scripts)
list(JOIN FACET_PAGE_STYLES "|" styles_joined)
list(JOIN FACET_PAGE_SCRIPTS "|" scripts_joined)
add_custom_command(OUTPUT ${FACET_PAGE_HEADER}
                   COMMAND ${CMAKE_COMMAND} -DDIR=${FACET_PAGE_DIR} "-DSTYLES=${styles_joined}" "-DSCRIPTS=${scripts_joined}" -DLATE=${FACET_PAGE_LATE}
                           -DOUT=${FACET_PAGE_HEADER} -DPYTHON=${Python3_EXECUTABLE} -P ${CMAKE_SOURCE_DIR}/cmake/page.cmake
                   DEPENDS ${FACET_PAGE_DIR}/index.html ${FACET_PAGE_FILES} ${FACET_PAGE_LATE_FILES} ${scripts} ${CMAKE_SOURCE_DIR}/cmake/page.cmake
                           ${FACET_PAGE_DIR}/lib/katex-fonts.tar.xz ${CMAKE_SOURCE_DIR}/tools/embed_fonts.py VERBATIM)
# /openapi.json and /docs, of docs/openapi.yaml.
set(FACET_OPENAPI_HEADER ${CMAKE_BINARY_DIR}/generated/facet_openapi.h)
add_custom_command(OUTPUT ${FACET_OPENAPI_HEADER}
                   COMMAND ${Python3_EXECUTABLE} ${CMAKE_SOURCE_DIR}/tools/openapi.py ${CMAKE_SOURCE_DIR}/docs/openapi.yaml ${FACET_OPENAPI_HEADER}
                   DEPENDS ${CMAKE_SOURCE_DIR}/docs/openapi.yaml ${CMAKE_SOURCE_DIR}/tools/openapi.py VERBATIM)
target_sources(facet_server PRIVATE ${FACET_PAGE_HEADER} ${FACET_OPENAPI_HEADER})
target_include_directories(facet_server PRIVATE ${CMAKE_BINARY_DIR}/generated)
add_custom_target(facet_commit COMMAND ${CMAKE_COMMAND} -DSOURCE=${CMAKE_SOURCE_DIR} -DOUT=${CMAKE_BINARY_DIR}/generated/facet_commit.h
                  -P ${CMAKE_SOURCE_DIR}/cmake/commit.cmake BYPRODUCTS ${CMAKE_BINARY_DIR}/generated/facet_commit.h VERBATIM)
add_dependencies(facet_app facet_commit)
target_include_directories(facet_app PRIVATE ${CMAKE_BINARY_DIR}/generated)
