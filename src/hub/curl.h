#pragma once
#include <cstddef>

#include "base/result.h"

namespace facet {

// libcurl, opened when it is needed: the program runs where it is not installed. Of its interface (which has been the
// same since 7.16) the functions and numbers that are used here.
struct Curl {
  static Result<const Curl*> load();

  int (*global_init)(long);
  void* (*easy_init)();
  void (*easy_cleanup)(void*);
  void (*easy_reset)(void*);
  int (*easy_setopt)(void*, int, ...);
  int (*easy_getinfo)(void*, int, ...);
  int (*easy_perform)(void*);
  const char* (*easy_strerror)(int);
  void* (*slist_append)(void*, const char*);
  void (*slist_free_all)(void*);

  // CURLOPT_...
  enum : int {
    kWriteData = 10001,
    kUrl = 10002,
    kErrorBuffer = 10010,
    kUserAgent = 10018,
    kHttpHeader = 10023,
    kHeaderData = 10029,
    kCaInfo = 10065,
    kTimeoutMs = 155,
    kConnectTimeoutMs = 156,
    kLowSpeedLimit = 19,
    kLowSpeedTime = 20,
    kNoSignal = 99,
    kProtocols = 181,
    kWriteFunction = 20011,
    kHeaderFunction = 20079,
    kForbidReuse = 75,
    kNoProxy = 10177,
    kOpenSocketFunction = 20163,
    kOpenSocketData = 10164,
  };
  static constexpr long kHttpAndHttps = 3;        // of CURLOPT_PROTOCOLS
  static constexpr int kRedirectUrl = 0x10001F;   // CURLINFO_REDIRECT_URL
  static constexpr int kResponseCode = 0x200002;  // CURLINFO_RESPONSE_CODE
  static constexpr size_t kErrorSize = 256;
  // CURLE_... that another attempt does not change, and the one of a callback that stops.
  enum : int {
    kUnsupportedProtocol = 1,
    kMalformed = 3,
    kWriteError = 23,
    kNoMemory = 27,
    kUnknownOption = 48,
    kBadCertificate = 60,
    kBadCaFile = 77
  };
};

}  // namespace facet
