#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/http.h"

// What a request's header decides before anything of its body is read: where the body ends (RFC 9112, 6), and whom the
// request is for (3.2). Pure functions. Whatever two readers of the same bytes could take in two ways is refused, and
// the connection closed: behind a proxy, the rest of such a body would be somebody's next request.
namespace facet {

struct HeadProblem {
  int status = 400;
  std::string what = {};
};

// version: 10 or 11. head.headers is filled, names in lower case. Fills path and query of the target; of one in
// absolute form the authority becomes the value of Host.
std::optional<HeadProblem> read_head(int version, std::string_view target, HttpRequest& head);

// Whether a body comes, from its header alone. Only what read_head let pass.
bool is_chunked(const HttpRequest& head);

}  // namespace facet
