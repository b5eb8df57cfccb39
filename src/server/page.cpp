#include "server/page.h"

#include "facet_page.h"  // written by cmake/page.cmake

namespace facet {

HttpResponse page_response() {
  // Only the style and the script of the file itself; they reach this server and nothing else, and cannot make elements
  // of text (trusted types).
  static constexpr char kPolicy[] =
      "default-src 'none'; connect-src 'self'; img-src data:; style-src '" FACET_PAGE_STYLE
      "'; script-src '" FACET_PAGE_SCRIPT
      "'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
      "require-trusted-types-for 'script'; trusted-types 'none'";
  return {.status = 200,
          .type = "text/html; charset=utf-8",
          .body = {kFacetPage, sizeof(kFacetPage) - 1},
          .headers = {{"Content-Security-Policy", kPolicy},
                      {"X-Content-Type-Options", "nosniff"},
                      {"Referrer-Policy", "no-referrer"},
                      {"Vary", "Accept"},
                      {"Cache-Control", "no-cache"}}};
}

HttpResponse front_response(const HttpRequest& request) {
  if (request.header("accept").find("text/html") != std::string_view::npos) return page_response();
  return {
      .status = 200, .type = "text/plain; charset=utf-8", .body = "Ollama is running", .headers = {{"Vary", "Accept"}}};
}

}  // namespace facet
