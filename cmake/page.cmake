# Packs the page: DIR/index.html with the files of STYLES, SCRIPTS and LATE (styles that the first picture does not need;
# each list separated by |) in its <style>, <script> and <style data-late>, fonts too (PYTHON embeds them, and unpacks
# what ends in .xz), and writes OUT, a header with the page, compressed, and the hashes of all, which the header
# Content-Security-Policy names: nothing else in the page may run.
#
# Scripts are modules that may also be read one by one; here they become one script. An import is one line without new
# names, so that the line can go; files come after those that they import from.
cmake_minimum_required(VERSION 3.25)
string(REPLACE "|" ";" STYLES "${STYLES}")
string(REPLACE "|" ";" SCRIPTS "${SCRIPTS}")

string(REPLACE "|" ";" LATE "${LATE}")

foreach(part style late)
  set(${part})
  string(REPLACE late LATE files ${part})
  string(REPLACE style STYLES files ${files})
  foreach(file IN LISTS ${files})
    file(READ ${DIR}/${file} text)
    if(file MATCHES "^lib/katex")
      execute_process(COMMAND ${PYTHON} ${CMAKE_CURRENT_LIST_DIR}/../tools/embed_fonts.py ${DIR}/${file} ${DIR}/lib/katex-fonts.tar.xz
                      OUTPUT_VARIABLE text COMMAND_ERROR_IS_FATAL ANY)
    endif()
    string(APPEND ${part} "${text}")
  endforeach()
endforeach()

set(script "\"use strict\";\n")
set(before)
set(names)
foreach(file IN LISTS SCRIPTS)
  if(file MATCHES "[.]xz$")
    execute_process(COMMAND ${PYTHON} -c "import lzma, sys; sys.stdout.buffer.write(lzma.open(sys.argv[1]).read())" ${DIR}/${file}
                    OUTPUT_VARIABLE text COMMAND_ERROR_IS_FATAL ANY)
  else()
    file(READ ${DIR}/${file} text)
  endif()
  if(NOT file MATCHES "^lib/")
    string(REPLACE ";" "" plain "\n${text}")  # which would cut the list of lines
    string(REGEX MATCHALL "\nimport [^\n]*" imports "${plain}")
    foreach(line IN LISTS imports)
      if(NOT line MATCHES "^\nimport {[A-Za-z0-9_$, ]+} from \"\\./([a-z-]+\\.js)\"$")
        message(FATAL_ERROR "${DIR}/${file}: expected import {names} from \"./file.js\"; on one line, found:${line}")
      elseif(NOT js/${CMAKE_MATCH_1} IN_LIST before)
        message(FATAL_ERROR "${DIR}/${file} imports from ${CMAKE_MATCH_1}, which does not come before it (cmake/generated.cmake)")
      endif()
    endforeach()
    string(REGEX REPLACE "\nimport [^\n]*" "" text "\n${text}")
    string(REGEX REPLACE "\nexport " "\n" text "${text}")
    # A second function of a name would take the place of the first without a word.
    string(REGEX MATCHALL "\n(async )?(function|const|let|class)[* ]+[A-Za-z0-9_$]+" found "${text}")
    foreach(name IN LISTS found)
      string(REGEX REPLACE ".* " "" name "${name}")
      if(name IN_LIST names)
        message(FATAL_ERROR "${DIR}/${file}: ${name} is the name of something in another file")
      endif()
      list(APPEND names ${name})
    endforeach()
  endif()
  string(APPEND script "${text}")
  list(APPEND before ${file})
endforeach()
string(TOLOWER "${script}" lower)
if(lower MATCHES "</script|<script[ \t\n/>]")
  message(FATAL_ERROR "${DIR}: a script holds ${CMAKE_MATCH_0}, which would end or hide the end of the page's script")
endif()

# The base64 of a SHA-256.
function(hash_of text out)
  string(SHA256 hex "${text}")
  set(digits "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/")
  set(base64)
  foreach(at RANGE 0 60 6)  # three bytes are four digits; the last two are three and =
    string(SUBSTRING "${hex}00" ${at} 6 three)
    foreach(shift 18 12 6 0)
      math(EXPR digit "(0x${three} >> ${shift}) & 63")
      string(SUBSTRING ${digits} ${digit} 1 digit)
      string(APPEND base64 ${digit})
    endforeach()
  endforeach()
  string(SUBSTRING ${base64} 0 43 base64)
  set(${out} "sha256-${base64}=" PARENT_SCOPE)
endfunction()

file(READ ${DIR}/index.html page)
foreach(part style script late)
  string(REPLACE late "style data-late" tag ${part})
  string(REGEX REPLACE " .*" "" end ${tag})
  string(FIND "${page}" "<${tag}></${end}>" at)
  if(at EQUAL -1)
    message(FATAL_ERROR "${DIR}/index.html: expected an empty <${tag}></${end}>")
  endif()
  string(REPLACE "<${tag}></${end}>" "<${tag}>${${part}}</${end}>" page "${page}")
  hash_of("${${part}}" ${part}_hash)
endforeach()
if(page MATCHES "\r")
  message(FATAL_ERROR "${DIR}: holds a carriage return, which browsers change before they hash")
endif()

string(SHA256 tag "${page}")
string(SUBSTRING ${tag} 0 16 tag)
file(WRITE ${OUT}.html "${page}")
file(ARCHIVE_CREATE OUTPUT ${OUT}.gz PATHS ${OUT}.html FORMAT raw COMPRESSION GZip COMPRESSION_LEVEL 9 MTIME "1970-01-01 00:00:00Z")
file(READ ${OUT}.gz bytes HEX)
string(REGEX REPLACE "(..)" "0x\\1," bytes "${bytes}")
string(REGEX REPLACE "(................................................................................)" "\\1\n" bytes "${bytes}")
file(WRITE ${OUT} "#pragma once
#define FACET_PAGE_STYLES \"'${style_hash}' '${late_hash}'\"
#define FACET_PAGE_SCRIPT \"${script_hash}\"
#define FACET_PAGE_TAG \"\\\"${tag}\\\"\"
inline constexpr unsigned char kFacetPage[] = {  // gzip
${bytes}};
")
