#pragma once
#include <cstdint>
#include <functional>
#include <string>

#include "base/result.h"
#include "hub/http.h"
#include "hub/repo.h"

// Models by name, from a hub that speaks Hugging Face's interface, into a folder that all programs share:
//
//   CACHE/USER/REPO/PATH          complete, its size and hash as the hub announced them
//   CACHE/USER/REPO/PATH.sha256   its hash, as `sha256sum -c` reads it
//   CACHE/USER/REPO/PATH.part     what there is of it; PATH.part.etag: which version the server said that is
//   CACHE/USER/REPO/lock          held by the process that downloads
namespace facet {

struct HubConfig {
  HubHttpConfig http = {};
  std::string cache = {};  // folder
  bool offline = false;    // what the cache has, and no connection
  int retries = 6;         // in a row that bring nothing new, before a download fails
  std::function<void(const std::string&)> note = [](const std::string&) {};
  // Bytes of a file that are there, of which `before` from an earlier run.
  std::function<void(const std::string& file, uint64_t before, uint64_t done, uint64_t total)> progress = {};
};

// The path of what `name` (see parse_hub_name) means: of a model the file, or the first part of it (its encoders lie in
// that folder or above, within the repository's); of a drafter also a folder. Downloads what the cache lacks or the hub has changed. Safe beside other processes that do the same.
Result<std::string> fetch_from_hub(const HubConfig& config, const std::string& name, HubUse use);

}  // namespace facet
