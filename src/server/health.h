#pragma once
#include <map>
#include <mutex>
#include <string>

#include "server/http.h"

namespace facet {

// What /health says. Any thread.
class Health {
 public:
  void ready();                                                   // the model is loaded
  void degrade(const std::string& what, const std::string& why);  // it goes on without something that was asked for
  void restore(const std::string& what);                          // it has that again
  void fail(const std::string& why);                              // requests end in errors
  void succeed();                                                 // one did not
  const char* state() const;                                      // "loading", "ok", "degraded", "failed"
  HttpResponse response() const;                                  // 200 where requests are answered, else 503

 private:
  mutable std::mutex mutex_;
  bool loaded_ = false;
  std::string failure_ = {};
  std::map<std::string, std::string> missing_ = {};  // by what
};

}  // namespace facet
