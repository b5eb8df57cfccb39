#include "server/page.h"

#include "facet_openapi.h"  // written by tools/openapi.py
#include "facet_page.h"     // written by cmake/page.cmake

namespace facet {

namespace {

// A file of the program, compressed: 304 to a browser that has it, 406 to a client that refuses gzip.
HttpResponse packed_response(const HttpRequest& request, HttpResponse r, std::string_view bytes, std::string_view tag) {
  r.headers.push_back({"X-Content-Type-Options", "nosniff"});
  r.headers.push_back({"Cache-Control", "no-cache"});
  r.headers.push_back({"ETag", std::string(tag)});
  const std::string_view codings = request.header("accept-encoding");
  if (request.header("if-none-match") == tag) {
    r.status = 304;
  } else if (!codings.empty() && codings.find("gzip") == codings.npos && codings.find('*') == codings.npos) {
    // Without the header every coding is welcome (RFC 9110).
    r.status = 406;
    r.type = "text/plain; charset=utf-8";
    r.body = "This is there as gzip only: ask with Accept-Encoding: gzip.\n";
  } else {
    r.body = bytes;
    r.headers.push_back({"Content-Encoding", "gzip"});
  }
  return r;
}

template <size_t n>
std::string_view view_of(const unsigned char (&bytes)[n]) {
  return {reinterpret_cast<const char*>(bytes), n};
}

}  // namespace

HttpResponse page_response(const HttpRequest& request) {
  // Only the style and the script of the file itself; they reach this server and nothing else, and cannot make elements
  // of text (trusted types).
  static constexpr char kPolicy[] =
      "default-src 'none'; connect-src 'self'; img-src data:; font-src data:; style-src " FACET_PAGE_STYLES
      "; script-src '" FACET_PAGE_SCRIPT
      "'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
      "require-trusted-types-for 'script'; trusted-types 'none'";
  return packed_response(request,
                         {.status = 200,
                          .type = "text/html; charset=utf-8",
                          .headers = {{"Content-Security-Policy", kPolicy},
                                      {"Referrer-Policy", "no-referrer"},
                                      {"Vary", "Accept, Accept-Encoding"}}},
                         view_of(kFacetPage), FACET_PAGE_TAG);
}

HttpResponse docs_response(const HttpRequest& request) {
  static constexpr char kPolicy[] = "default-src 'none'; style-src '" FACET_DOCS_STYLE
                                    "'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
  return packed_response(request,
                         {.status = 200,
                          .type = "text/html; charset=utf-8",
                          .headers = {{"Content-Security-Policy", kPolicy},
                                      {"Referrer-Policy", "no-referrer"},
                                      {"Vary", "Accept-Encoding"}}},
                         view_of(kDocsPage), FACET_DOCS_TAG);
}

HttpResponse openapi_response(const HttpRequest& request) {
  // Most programs that read it send no Accept-Encoding, or take gzip; the others need it as it is.
  const std::string_view codings = request.header("accept-encoding");
  HttpResponse r{.status = 200, .type = "application/json", .headers = {{"Vary", "Accept-Encoding"}}};
  if (codings.find("gzip") != codings.npos) return packed_response(request, r, view_of(kOpenApiGzip), FACET_DOCS_TAG);
  r.body = kOpenApi;
  return r;
}

HttpResponse front_response(const HttpRequest& request) {
  if (request.header("accept").find("text/html") != std::string_view::npos) return page_response(request);
  return {
      .status = 200, .type = "text/plain; charset=utf-8", .body = "Ollama is running", .headers = {{"Vary", "Accept"}}};
}

}  // namespace facet
