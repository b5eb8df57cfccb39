#pragma once
#include <span>
#include <string>

#include "base/files.h"
#include "base/sha.h"
#include "hub/hub.h"

namespace facet {

std::string amount_of(uint64_t bytes);  // "18.70 GB"

// The hash under which the hub knows a file, of a file here.
Sha file_hash(const RemoteFile& file);
inline const std::string& announced_hash(const RemoteFile& f) { return f.sha256.empty() ? f.git : f.sha256; }

// Seconds to wait after so many failures in a row: half a second, doubled each time, at most 30.
double retry_wait(int failures);

// What a status other than success means; `file`: what was asked for.
Error status_error(int status, const std::string& repo, const std::string& file, bool has_token);
inline bool may_pass(int status) { return status == 408 || status == 429 || status >= 500; }

// One file, from a hub to a path. The caller holds the folder's lock.
class Download {
 public:
  Download(HubClient& http, const HubConfig& config, std::string repo, RemoteFile file, std::string path);

  // Until it is complete and right. changed(): the hub has another one than its listing said.
  Status run();
  bool changed() const { return changed_; }
  uint64_t before() const { return before_; }  // bytes that an earlier run had left

 private:
  Status begin_again(const std::string& why);
  Status take_up();  // hashes what an earlier run left
  Status remember_version(const std::string& etag);
  Status transfer();
  Result<bool> attempt();  // whether to try again
  bool begin(const HubHead& head);
  bool receive(const HubHead& head, std::span<const std::byte> bytes);

  HubClient& http_;
  const HubConfig& config_;
  std::string repo_, path_;
  RemoteFile file_;
  PartFile part_;
  Sha sha_;
  std::string etag_ = {};  // of what the part is a part of
  uint64_t before_ = 0;    // bytes from an earlier run
  bool resumed_ = false, begun_ = false, changed_ = false;
  Status failed_ = Ok{};   // inside of a callback
  std::string lost_ = {};  // why the last attempt ended
  double wait_s_ = 0;      // that the server asks for
};

}  // namespace facet
