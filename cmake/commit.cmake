# Writes OUT, a header that says which commit is being built. Runs at every build; the file changes only when that does.
execute_process(COMMAND git -C ${SOURCE} describe --always --dirty --abbrev=12 --match= OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
if(NOT commit)
  set(commit unknown)
endif()
file(CONFIGURE OUTPUT ${OUT} CONTENT "#define FACET_COMMIT \"${commit}\"\n" @ONLY)
