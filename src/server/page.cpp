#include "server/page.h"

#include "facet_page.h"  // written by cmake/page.cmake

namespace facet {

HttpResponse page_response(const HttpRequest& request) {
  // Only the style and the script of the file itself; they reach this server and nothing else, and cannot make elements
  // of text (trusted types).
  static constexpr char kPolicy[] =
      "default-src 'none'; connect-src 'self'; img-src data:; font-src data:; style-src " FACET_PAGE_STYLES
      "; script-src '" FACET_PAGE_SCRIPT
      "'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
      "require-trusted-types-for 'script'; trusted-types 'none'";
  HttpResponse r = {.status = 200,
                    .type = "text/html; charset=utf-8",
                    .headers = {{"Content-Security-Policy", kPolicy},
                                {"X-Content-Type-Options", "nosniff"},
                                {"Referrer-Policy", "no-referrer"},
                                {"Vary", "Accept, Accept-Encoding"},
                                {"Cache-Control", "no-cache"},
                                {"ETag", FACET_PAGE_TAG}}};
  const std::string_view codings = request.header("accept-encoding");
  if (request.header("if-none-match") == FACET_PAGE_TAG) {
    r.status = 304;
  } else if (!codings.empty() && codings.find("gzip") == codings.npos && codings.find('*') == codings.npos) {
    // Without the header every coding is welcome (RFC 9110).
    r.status = 406;
    r.type = "text/plain; charset=utf-8";
    r.body = "The page is there as gzip only: ask with Accept-Encoding: gzip.\n";
  } else {
    r.body = {reinterpret_cast<const char*>(kFacetPage), sizeof(kFacetPage)};
    r.headers.push_back({"Content-Encoding", "gzip"});
  }
  return r;
}

HttpResponse front_response(const HttpRequest& request) {
  if (request.header("accept").find("text/html") != std::string_view::npos) return page_response(request);
  return {
      .status = 200, .type = "text/plain; charset=utf-8", .body = "Ollama is running", .headers = {{"Vary", "Accept"}}};
}

}  // namespace facet
