#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "server/http.h"
#include "server/routes.h"
#include "server/writer.h"

// Who may ask what: keys, names of this machine, origins of pages.
namespace facet {

struct ApiKey {
  std::string key = {}, name = {};
};

// A file of keys: one a line, then perhaps a space and a name for the log. Empty lines and those that begin with # do
// not count. A key without a name is called by its number: key1, key2, ...
Result<std::vector<ApiKey>> parse_api_keys(std::string_view text, const std::string& where);
Result<std::vector<ApiKey>> read_api_keys(const std::string& path);
// --api-key and the keys of --api-key-file; empty: none.
Result<std::vector<ApiKey>> all_api_keys(const std::string& key, const std::string& file);
// An error where an address, or origins, would let strangers use a server without keys.
Status check_reach(const std::string& host, bool keys, const std::vector<std::string>& origins);

// Compares in a time that depends on the length of `given` only.
bool same_key(std::string_view given, std::string_view expected);

class Access {
 public:
  std::vector<ApiKey> keys = {};          // none: this machine alone is served
  std::vector<std::string> origins = {};  // whose pages may read answers; "*": every one's
  bool page = true;                       // whether there is one at /

  // Judged by the header alone; nothing: it may go on.
  std::optional<ApiError> refusal(const HttpRequest& head) const;
  // The answer to a request whose body nobody is to read: a refusal, with the headers that belong to it, or the answer
  // to a preflight. Nothing: it may go on.
  std::optional<HttpResponse> gate(const HttpRequest& head) const;
  // The name of the key that a request has; empty: none of ours.
  std::string_view key_name(const HttpRequest& head) const;
  // Cross-origin resource sharing: what lets a page of a listed origin read the answer; nothing for others.
  std::vector<std::pair<std::string, std::string>> cors_headers(const HttpRequest& head) const;
  // Whether this is a browser's question before a page's request, which is answered here.
  bool preflight(const HttpRequest& head) const;

 private:
  const Route* route(std::string_view path) const;
  bool names(std::string_view origin) const;   // whether it is one of `origins`
  bool shares(std::string_view origin) const;  // that, or they are every one's
};

}  // namespace facet
