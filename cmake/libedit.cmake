# Line editing in chat: libedit and what it needs, as archives.
find_path(FACET_HISTEDIT histedit.h)
set(FACET_EDIT_ARCHIVES)
foreach(name edit tinfo bsd md)
  find_library(FACET_LIB_${name} lib${name}.a)
  list(APPEND FACET_EDIT_ARCHIVES ${FACET_LIB_${name}})
endforeach()
if(FACET_HISTEDIT AND NOT FACET_EDIT_ARCHIVES MATCHES "NOTFOUND")
  target_compile_definitions(facet_app PUBLIC FACET_LINE_EDITING=1)
  target_link_libraries(facet_app PRIVATE ${FACET_EDIT_ARCHIVES})
else()
  message(WARNING "no static libedit (libedit-dev): facet chat will not edit lines")
endif()

