#pragma once
#include "server/http.h"

namespace facet {

// The page at / (the folder page/, packed by cmake/page.cmake), part of the program and sent compressed. 304 to a
// browser that has it, 406 to a client that refuses gzip.
HttpResponse page_response(const HttpRequest& request);
// The API as a page without scripts, and for programs; both of docs/openapi.yaml (tools/openapi.py).
HttpResponse docs_response(const HttpRequest& request);
HttpResponse openapi_response(const HttpRequest& request);
// What is there for whoever is no browser: the text by which clients know a server that speaks Ollama's API.
HttpResponse front_response(const HttpRequest& request);

}  // namespace facet
