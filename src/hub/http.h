#pragma once
#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "hub/curl.h"

namespace facet {

// What an answer's head says; empty, or -1: nothing.
struct HubHead {
  int status = 0;
  std::string etag, content_range, link;
  std::string linked_etag;  // of the file, on an answer that sends on to where it lies
  long long content_length = -1, linked_size = -1, retry_after = -1;
};

// How a GET ended.
struct HubEnd {
  enum class Fault {
    kNone,    // with whatever status
    kAgain,   // the connection failed: another attempt may do
    kFinal,   // it would fail again
    kStopped  // the receiver wanted no more
  };
  Fault fault = Fault::kNone;
  Error error = {};
  HubHead head = {};  // of the last answer
};

struct HubHttpConfig {
  std::string endpoint = {};  // the hub
  std::string token = {};     // goes to the hub's host and no other
  std::string ca_file = {};   // certificates to trust; empty: the system's
  int timeout_s = 30;         // of silence
};

class HubClient {
 public:
  // Whoever receives a body: pieces of it, with its head. False ends the transfer.
  using Receive = std::function<bool(const HubHead&, std::span<const std::byte>)>;

  static Result<HubClient> open(HubHttpConfig config);
  HubClient(HubClient&& other) noexcept;
  HubClient& operator=(HubClient&&) = delete;
  ~HubClient();

  // GET, sent on up to ten times, never from https to http. Only the last answer's body is received. most_s: for all
  // of it, where the answer is short; 0: as long as it takes.
  HubEnd get(const std::string& url, const std::vector<std::string>& headers, const Receive& receive, int most_s);

 private:
  HubClient() = default;
  HubEnd get_one(const std::string& url, const std::vector<std::string>& headers, const Receive& receive, int most_s,
                 std::string& onward);
  HubHttpConfig config_;
  std::string origin_;  // of the hub
  const Curl* curl_ = nullptr;
  void* handle_ = nullptr;
};

}  // namespace facet
