#pragma once
#include "server/http.h"

namespace facet {

// The page at /: one file (page/index.html), part of the program.
HttpResponse page_response();

}  // namespace facet
