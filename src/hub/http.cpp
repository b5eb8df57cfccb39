#include "hub/http.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <string_view>
#include <utility>

#include "hub/url.h"

namespace facet {
namespace {

constexpr int kMostRedirects = 10;
constexpr long kSlowest = 100;           // bytes a second; less for timeout_s is silence
constexpr size_t kMostMoved = 64 << 10;  // bytes of an answer that sends on, which nobody reads

// What the callbacks write to.
struct Transfer {
  HubHead head;
  const HubClient::Receive* receive;
  size_t moved = 0;  // bytes of such a body
  bool redirects() const { return head.status >= 300 && head.status < 400; }
};

long long number(std::string_view s) {
  long long n = -1;
  const auto [end, ec] = std::from_chars(s.data(), s.data() + s.size(), n);
  return ec == std::errc() && end == s.data() + s.size() && n >= 0 ? n : -1;
}

void take_line(HubHead& head, std::string_view line) {
  while (!line.empty() && (line.back() == '\r' || line.back() == '\n' || line.back() == ' ')) line.remove_suffix(1);
  if (line.starts_with("HTTP/")) {  // the next answer, behind a proxy's or 100 Continue
    head = {};
    const size_t at = line.find(' ');
    if (at != line.npos) head.status = int(number(line.substr(at + 1, 3)));
    return;
  }
  const size_t colon = line.find(':');
  if (colon == line.npos) return;
  std::string name(line.substr(0, colon));
  for (char& c : name) c = char(std::tolower(static_cast<unsigned char>(c)));
  std::string_view value = line.substr(colon + 1);
  while (!value.empty() && value[0] == ' ') value.remove_prefix(1);
  if (name == "etag") head.etag = value;
  if (name == "content-range") head.content_range = value;
  if (name == "link") head.link = value;
  if (name == "x-linked-etag") head.linked_etag = value;
  if (name == "x-linked-size") head.linked_size = number(value);
  if (name == "content-length") head.content_length = number(value);
  if (name == "retry-after") head.retry_after = number(value);
}

size_t on_header(char* data, size_t size, size_t n, void* to) {
  take_line(static_cast<Transfer*>(to)->head, std::string_view(data, size * n));
  return size * n;
}
size_t on_body(char* data, size_t size, size_t n, void* to) {
  auto* t = static_cast<Transfer*>(to);
  const bool wanted = t->redirects() ? (t->moved += size * n) <= kMostMoved
                                     : (*t->receive)(t->head, std::as_bytes(std::span(data, size * n)));
  return wanted ? size * n : 0;  // CURLE_WRITE_ERROR
}

HubEnd::Fault fault_of(int code) {
  switch (code) {
    case 0:
      return HubEnd::Fault::kNone;
    case Curl::kWriteError:
      return HubEnd::Fault::kStopped;
    case Curl::kUnsupportedProtocol:
    case Curl::kMalformed:
    case Curl::kNoMemory:
    case Curl::kUnknownOption:
    case Curl::kBadCertificate:
    case Curl::kBadCaFile:
      return HubEnd::Fault::kFinal;
    default:
      return HubEnd::Fault::kAgain;
  }
}

}  // namespace

Result<HubClient> HubClient::open(HubHttpConfig config) {
  auto origin = origin_of(config.endpoint);
  if (!origin)
    return Error{"HF_ENDPOINT", origin.error().what + ": " + origin.error().where, "as in https://huggingface.co"};
  if (std::any_of(config.token.begin(), config.token.end(), [](unsigned char c) { return c <= ' ' || c >= 127; }))
    return Error{"HF_TOKEN", "expected visible characters, found others", "copy it again"};
  auto curl = Curl::load();
  if (!curl) return curl.error();
  HubClient c;
  c.config_ = std::move(config), c.origin_ = *origin, c.curl_ = *curl;
  c.handle_ = c.curl_->easy_init();
  if (!c.handle_) return Error{"libcurl", "cannot be used", ""};
  return c;
}
HubClient::HubClient(HubClient&& other) noexcept
    : config_(std::move(other.config_)),
      origin_(std::move(other.origin_)),
      curl_(other.curl_),
      handle_(std::exchange(other.handle_, nullptr)) {}
HubClient::~HubClient() {
  if (handle_) curl_->easy_cleanup(handle_);
}

HubEnd HubClient::get_one(const std::string& url, const std::vector<std::string>& headers, const Receive& receive,
                          int most_s, std::string& onward) {
  const Curl& c = *curl_;
  Transfer transfer{.head = {}, .receive = &receive};
  char problem[Curl::kErrorSize] = "";
  void* list = nullptr;
  for (const std::string& h : headers) list = c.slist_append(list, h.c_str());
  const auto origin = origin_of(url);
  if (!config_.token.empty() && origin && *origin == origin_)
    list = c.slist_append(list, ("Authorization: Bearer " + config_.token).c_str());
  c.easy_reset(handle_);  // the connections stay
  int code = 0;
  const auto set = [&](int option, auto value) {
    if (code == 0) code = c.easy_setopt(handle_, option, value);
  };
  set(Curl::kUrl, url.c_str());
  set(Curl::kProtocols, Curl::kHttpAndHttps);
  set(Curl::kUserAgent, "facet/" FACET_VERSION);
  set(Curl::kHttpHeader, list);
  set(Curl::kErrorBuffer, problem);
  set(Curl::kNoSignal, 1L);
  set(Curl::kConnectTimeoutMs, 1000L * config_.timeout_s);
  set(Curl::kLowSpeedLimit, kSlowest);
  set(Curl::kLowSpeedTime, long(config_.timeout_s));
  if (most_s > 0) set(Curl::kTimeoutMs, 1000L * most_s);
  if (!config_.ca_file.empty()) set(Curl::kCaInfo, config_.ca_file.c_str());
  set(Curl::kHeaderFunction, &on_header);
  set(Curl::kHeaderData, &transfer);
  set(Curl::kWriteFunction, &on_body);
  set(Curl::kWriteData, &transfer);
  if (code == 0) code = c.easy_perform(handle_);
  const char* to = nullptr;
  if (code == 0 && transfer.redirects() && c.easy_getinfo(handle_, Curl::kRedirectUrl, &to) == 0 && to) onward = to;
  c.slist_free_all(list);
  HubEnd end{.fault = fault_of(code), .error = {}, .head = std::move(transfer.head)};
  // A signed address ends in what is nobody else's.
  if (transfer.moved > kMostMoved)
    return {HubEnd::Fault::kFinal,
            {url.substr(0, url.find('?')),
             fmt::format("expected at most {} bytes of an answer that sends on, found more", kMostMoved), ""},
            std::move(end.head)};
  if (code != 0) end.error = {url.substr(0, url.find('?')), problem[0] ? problem : c.easy_strerror(code), ""};
  return end;
}

HubEnd HubClient::get(const std::string& url, const std::vector<std::string>& headers, const Receive& receive,
                      int most_s) {
  std::string at = url, linked_etag;
  long long linked_size = -1;
  for (int n = 0; n <= kMostRedirects; ++n) {
    std::string onward;
    HubEnd end = get_one(at, headers, receive, most_s, onward);
    if (onward.empty()) {
      if (end.head.linked_etag.empty()) end.head.linked_etag = linked_etag, end.head.linked_size = linked_size;
      return end;
    }
    if (auto ok = check_redirect(at, onward); !ok) return {HubEnd::Fault::kFinal, ok.error(), end.head};
    if (!end.head.linked_etag.empty()) linked_etag = end.head.linked_etag, linked_size = end.head.linked_size;
    at = onward;
  }
  return {HubEnd::Fault::kFinal, {url, fmt::format("is sent on more than {} times", kMostRedirects), ""}, {}};
}

}  // namespace facet
