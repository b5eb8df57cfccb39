#include "hub/environment.h"

#include <algorithm>
#include <cstdlib>

namespace facet {
namespace {

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}
bool is_set(const char* name) {
  const std::string v = environment(name);
  return !v.empty() && v != "0" && v != "false" && v != "FALSE" && v != "off" && v != "OFF" && v != "no" && v != "NO";
}

// As huggingface_hub has it: seconds without a byte.
int timeout_s() {
  const int n = std::atoi(environment("HF_HUB_DOWNLOAD_TIMEOUT").c_str());
  return n > 0 ? std::min(n, 3600) : HubHttpConfig().timeout_s;
}

}  // namespace

std::string hub_cache_folder() {
  if (std::string own = environment("FACET_CACHE"); !own.empty()) return own;
  if (const std::string xdg = environment("XDG_CACHE_HOME"); xdg.starts_with("/")) return xdg + "/facet/hub";
  const std::string home = environment("HOME");
  return home.empty() ? "" : home + "/.cache/facet/hub";
}

HubConfig hub_config_of_environment() {
  HubConfig c;
  c.http.endpoint = environment("HF_ENDPOINT");
  if (c.http.endpoint.empty()) c.http.endpoint = "https://huggingface.co";
  while (c.http.endpoint.ends_with('/')) c.http.endpoint.pop_back();
  c.http.token = environment("HF_TOKEN");
  c.http.ca_file = environment("SSL_CERT_FILE");
  c.http.timeout_s = timeout_s();
  c.cache = hub_cache_folder();
  while (c.cache.size() > 1 && c.cache.ends_with('/')) c.cache.pop_back();
  c.offline = is_set("HF_HUB_OFFLINE");
  return c;
}

}  // namespace facet
