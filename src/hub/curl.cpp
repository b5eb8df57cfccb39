#include "hub/curl.h"

#include <dlfcn.h>

#include <mutex>

namespace facet {
namespace {

template <class F>
bool find(void* library, const char* name, F& f) {
  f = reinterpret_cast<F>(::dlsym(library, name));
  return f != nullptr;
}

bool open(Curl& c) {
  for (const char* name : {"libcurl.so.4", "libcurl-gnutls.so.4", "libcurl.so"}) {
    void* library = ::dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (!library) continue;
    if (find(library, "curl_global_init", c.global_init) && find(library, "curl_easy_init", c.easy_init) &&
        find(library, "curl_easy_cleanup", c.easy_cleanup) && find(library, "curl_easy_reset", c.easy_reset) &&
        find(library, "curl_easy_setopt", c.easy_setopt) && find(library, "curl_easy_getinfo", c.easy_getinfo) &&
        find(library, "curl_easy_perform", c.easy_perform) && find(library, "curl_easy_strerror", c.easy_strerror) &&
        find(library, "curl_slist_append", c.slist_append) && find(library, "curl_slist_free_all", c.slist_free_all))
      return c.global_init(/*CURL_GLOBAL_ALL=*/3) == 0;
    ::dlclose(library);
  }
  return false;
}

}  // namespace

Result<const Curl*> Curl::load() {
  static Curl curl{};
  static std::once_flag once;
  static bool there = false;
  std::call_once(once, [] { there = open(curl); });
  if (there) return &curl;
  return Error{"libcurl.so.4", "expected libcurl, which downloads need, found none",
               "install it (Debian, Ubuntu: libcurl4), or fetch the file yourself and give its path"};
}

}  // namespace facet
