# Writes OUT, a header with the page PAGE as a constant and the hashes of its style and its script, which the header
# Content-Security-Policy names: nothing else in the page may run.
file(READ ${PAGE} page)
if(page MATCHES "\\)page\"" OR page MATCHES "\r")
  message(FATAL_ERROR "${PAGE}: holds )page\" or a carriage return, which the constant cannot")
endif()

# The base64 of a SHA-256 of what is between <tag> and </tag>; each may be there once.
function(hash_of tag out)
  string(FIND "${page}" "<${tag}>" begin)
  string(FIND "${page}" "<${tag}>" last REVERSE)
  string(FIND "${page}" "</${tag}>" end)
  if(begin EQUAL -1 OR NOT begin EQUAL last OR end LESS begin)
    message(FATAL_ERROR "${PAGE}: expected one <${tag}> without attributes")
  endif()
  string(LENGTH "<${tag}>" skip)
  math(EXPR begin "${begin} + ${skip}")
  math(EXPR length "${end} - ${begin}")
  string(SUBSTRING "${page}" ${begin} ${length} text)
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

hash_of(style style)
hash_of(script script)
file(WRITE ${OUT} "#pragma once
#define FACET_PAGE_STYLE \"${style}\"
#define FACET_PAGE_SCRIPT \"${script}\"
inline constexpr char kFacetPage[] = R\"page(${page})page\";
")
