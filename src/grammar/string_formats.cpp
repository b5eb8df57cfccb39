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
// Path and query in one: a query may hold what ends it only as part of itself.
#define FACET_HIER \
  FACET_HOST "(?::[1-9]\\d{0,3})?(?:[/?](?:" FACET_PATH_CHAR "|[/?])*)?(?:#(?:" FACET_PATH_CHAR "|[/?])*)?"
#define FACET_URI "[A-Za-z][A-Za-z0-9+.-]{0,15}://" FACET_HIER
#define FACET_HEX_OCTETS(n) "[0-9a-f]{2}(?:" n "[0-9a-f]{2}){5}"
#define FACET_BASE64 "(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?"
#define FACET_N "\\d{1,9}"
#define FACET_CLOCK "T(?:" FACET_N "H(?:" FACET_N "M(?:" FACET_N "S)?)?|" FACET_N "M(?:" FACET_N "S)?|" FACET_N "S)"
#define FACET_DURATION                                                                                        \
  "P(?:" FACET_N "W|(?:" FACET_N "Y(?:" FACET_N "M(?:" FACET_N "D)?)?|" FACET_N "M(?:" FACET_N "D)?|" FACET_N \
  "D)(?:" FACET_CLOCK ")?|" FACET_CLOCK ")"

struct Format {
  std::string_view name;
  const char* regex;
};
#define FACET_UUID(version) \
  "[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-" version "[0-9a-fA-F]{3}-[89abAB][0-9a-fA-F]{3}-[0-9a-fA-F]{12}"
#define FACET_EMAIL "[A-Za-z0-9_+-]{1,32}(?:\\.[A-Za-z0-9_+-]{1,30})?@" FACET_LABEL "(?:\\." FACET_LABEL "){1,5}"
#define FACET_IPV4 FACET_OCTET "(?:\\." FACET_OCTET "){3}"
#define FACET_PREFIX32 "(?:[12]?\\d|3[0-2])"
#define FACET_PREFIX128 "(?:1[01]\\d|12[0-8]|[1-9]?\\d)"
#define FACET_CIDR4 FACET_IPV4 "/" FACET_PREFIX32
#define FACET_CIDR6 "(?:" FACET_IPV6 ")/" FACET_PREFIX128
constexpr Format kFormats[] = {
    // JSON Schema's own.
    {"date", FACET_DATE},
    {"time", FACET_TIME},
    {"date-time", FACET_DATE "T" FACET_TIME},
    {"duration", FACET_DURATION},
    {"uuid", "[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}"},
    {"email", FACET_EMAIL},
    {"idn-email", FACET_EMAIL},
    {"hostname", FACET_HOST},
    {"idn-hostname", FACET_HOST},
    {"ipv4", FACET_IPV4},
    {"ipv6", FACET_IPV6},
    {"uri", FACET_URI},
    {"iri", FACET_URI},
    {"uri-reference", FACET_URI "|(?:/" FACET_PATH_CHAR "+)+"},
    {"iri-reference", FACET_URI "|(?:/" FACET_PATH_CHAR "+)+"},
    {"uri-template", FACET_URI},
    {"json-pointer", "(?:/(?:[^/~]|~[01])*)*"},
    {"relative-json-pointer", "(?:0|[1-9]\\d{0,8})(?:#|(?:/(?:[^/~]|~[01])*)*)"},
    // zod's.
    {"guid", "[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}"},
    {"url", "https?://" FACET_HIER},
    {"datetime", FACET_DATE "T" FACET_TIME},
    {"cuid", "c[0-9a-z]{24}"},
    {"cuid2", "[a-z][0-9a-z]{23}"},
    {"ulid", "[0-7][0-9A-HJKMNP-TV-Z]{25}"},
    {"xid", "[0-9a-v]{20}"},
    {"ksuid", "[A-Za-z0-9]{27}"},
    {"nanoid", "[A-Za-z0-9_-]{21}"},
    {"cidrv4", FACET_CIDR4},
    {"cidrv6", FACET_CIDR6},
    {"mac", FACET_HEX_OCTETS(":")},
    {"base64", FACET_BASE64},
    {"base64url", "[A-Za-z0-9_-]*"},
    {"e164", "\\+[1-9]\\d{6,14}"},
    {"jwt", "eyJ[A-Za-z0-9_-]+\\.eyJ[A-Za-z0-9_-]+\\.[A-Za-z0-9_-]+"},
    // pydantic's.
    {"uuid1", FACET_UUID("1")},
    {"uuid3", FACET_UUID("3")},
    {"uuid4", FACET_UUID("4")},
    {"uuid5", FACET_UUID("5")},
    {"uuid6", FACET_UUID("6")},
    {"uuid7", FACET_UUID("7")},
    {"uuid8", FACET_UUID("8")},
    {"multi-host-uri", FACET_URI},
    {"ipvanyaddress", FACET_IPV4 "|" FACET_IPV6},
    {"ipv4interface", FACET_CIDR4},
    {"ipv6interface", FACET_CIDR6},
    {"ipvanyinterface", FACET_CIDR4 "|" FACET_CIDR6},
    {"ipv4network", "(?:\\d|[1-9]\\d|1\\d\\d|2[0-4]\\d|25[0-5])\\.0\\.0\\.0/(?:[89]|[12]\\d|3[0-2])"},
    {"ipv6network", FACET_H "::/(?:1[6-9]|[2-9]\\d|1[01]\\d|12[0-8])"},
    {"ipvanynetwork", "(?:\\d|[1-9]\\d|1\\d\\d|2[0-4]\\d|25[0-5])\\.0\\.0\\.0/(?:[89]|[12]\\d|3[0-2])|" FACET_H
                      "::/(?:1[6-9]|[2-9]\\d|1[01]\\d|12[0-8])"},
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
  return "one of those in docs/structured-output.md (date, time, date-time, duration, uuid, email, hostname, ipv4, "
         "ipv6, "
         "uri, ...)";
}

}  // namespace facet::grammar
