#pragma once
#include "server/http.h"

namespace facet {

// The page at /: one file (page/index.html), part of the program.
HttpResponse page_response();
// What is there for whoever is no browser: the text by which clients know a server that speaks Ollama's API.
HttpResponse front_response(const HttpRequest& request);

}  // namespace facet
