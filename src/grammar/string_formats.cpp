#include "grammar/string_formats.h"

namespace facet::grammar {
namespace {

#define FACET_YEAR "[1-9]\\d{3}"
#define FACET_LEAP "(?:[1-9]\\d(?:0[48]|[2468][048]|[13579][26])|(?:[2468][048]|[13579][26])00)"
#define FACET_DATE                                                                       \
  "(?:" FACET_YEAR                                                                       \
  "-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\\d|30)|" \
  "02-(?:0[1-9]|1\\d|2[0-8]))|" FACET_LEAP "-02-29)"
#define FACET_TIME "(?:[01]\\d|2[0-3]):[0-5]\\d:[0-5]\\d(?:\\.\\d{1,6})?(?:Z|[+-](?:[01]\\d|2[0-3]):[0-5]\\d)"
#define FACET_LABEL "[A-Za-z0-9](?:[A-Za-z0-9-]{0,28}[A-Za-z0-9])?"
#define FACET_HOST FACET_LABEL "(?:\\." FACET_LABEL "){0,7}"
#define FACET_OCTET "(?:25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)"
#define FACET_H "[0-9A-Fa-f]{1,4}"
#define FACET_IPV6                                                                                            \
  "(?:" FACET_H ":){7}" FACET_H "|(?:" FACET_H ":){1,7}:|(?:" FACET_H ":){1,6}:" FACET_H "|(?:" FACET_H       \
  ":){1,5}(?::" FACET_H "){1,2}|(?:" FACET_H ":){1,4}(?::" FACET_H "){1,3}|(?:" FACET_H ":){1,3}(?::" FACET_H \
  "){1,4}|(?:" FACET_H ":){1,2}(?::" FACET_H "){1,5}|" FACET_H ":(?::" FACET_H "){1,6}|:(?::" FACET_H "){1,7}|::"
#define FACET_PATH_CHAR "(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})"
#define FACET_URI                                                                                                  \
  "[A-Za-z][A-Za-z0-9+.-]*://" FACET_HOST "(?::[1-9]\\d{0,3})?(?:/" FACET_PATH_CHAR "*)*(?:\\?(?:" FACET_PATH_CHAR \
  "|[/?])*)?(?:#(?:" FACET_PATH_CHAR "|[/?])*)?"
#define FACET_N "\\d{1,9}"
#define FACET_CLOCK "T(?:" FACET_N "H(?:" FACET_N "M(?:" FACET_N "S)?)?|" FACET_N "M(?:" FACET_N "S)?|" FACET_N "S)"
#define FACET_DURATION                                                                                        \
  "P(?:" FACET_N "W|(?:" FACET_N "Y(?:" FACET_N "M(?:" FACET_N "D)?)?|" FACET_N "M(?:" FACET_N "D)?|" FACET_N \
  "D)(?:" FACET_CLOCK ")?|" FACET_CLOCK ")"

struct Format {
  std::string_view name;
  const char* regex;
};
constexpr Format kFormats[] = {
    {"date", FACET_DATE},
    {"time", FACET_TIME},
    {"date-time", FACET_DATE "T" FACET_TIME},
    {"duration", FACET_DURATION},
    {"uuid", "[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}"},
    {"email", "[A-Za-z0-9_+-]{1,32}(?:\\.[A-Za-z0-9_+-]{1,30})?@" FACET_LABEL "(?:\\." FACET_LABEL "){1,5}"},
    {"hostname", FACET_HOST},
    {"ipv4", FACET_OCTET "(?:\\." FACET_OCTET "){3}"},
    {"ipv6", FACET_IPV6},
    {"uri", FACET_URI},
    {"json-pointer", "(?:/(?:[^/~]|~[01])*)*"},
    // Say how bytes or numbers are stored, or name a kind of text without a syntax.
    {"password", ""},
    {"binary", ""},
    {"byte", ""},
    {"path", ""},
    {"file-path", ""},
    {"directory-path", ""},
};

}  // namespace

const char* format_regex(std::string_view name) {
  for (const Format& f : kFormats)
    if (f.name == name) return f.regex;
  return nullptr;
}

std::string_view supported_formats() {
  return "date, time, date-time, duration, uuid, email, hostname, ipv4, ipv6, uri or json-pointer";
}

}  // namespace facet::grammar
