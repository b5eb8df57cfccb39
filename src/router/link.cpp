#include "router/link.h"
#include "tokenizer/json.h"

#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <chrono>

namespace facet {
namespace {

constexpr int kWaitMs = 5000;  // for a router that is slow to read

int64_t now_ms() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace

void RouterLink::loading(uint64_t done, uint64_t total) {
  {
    const std::lock_guard lock(mutex_);
    const int64_t now = now_ms();
    if (told_ms_ >= 0 && now - told_ms_ < 50) return;
    told_ms_ = now;
  }
  tell({{"state", "loading"}, {"done", done}, {"total", total}}, true);
}

void RouterLink::ready(const Ready& r) {
  tell({{"state", "ready"},
        {"n_ctx", r.n_ctx},
        {"n_vocab", r.n_vocab},
        {"n_seq", r.n_seq},
        {"bytes", r.bytes},
        {"plan", r.plan}},
       false);
}

void RouterLink::failed(const Error& error, bool no_room) {
  tell({{"state", "failed"}, {"error", error.message().substr(0, 4096)}, {"no_room", no_room}}, false);
}

void RouterLink::tell(const Json& message, bool may_be_lost) {
  if (!there()) return;
  const std::string text = dump_json(message);
  for (;;) {
    if (::send(fd_, text.data(), text.size(), MSG_DONTWAIT | MSG_NOSIGNAL) >= 0) return;
    if (errno == EINTR) continue;
    if ((errno != EAGAIN && errno != EWOULDBLOCK) || may_be_lost) return;
    pollfd p{fd_, POLLOUT, 0};
    if (::poll(&p, 1, kWaitMs) <= 0) return;
  }
}

Result<Json> parse_link_message(std::string_view packet) {
  auto j = parse_json(packet, "");
  if (!j) return j.error();
  const auto has = [&](const char* key, bool (Json::*is)() const noexcept) {
    return j->contains(key) && ((*j)[key].*is)();
  };
  if (j->is_object() && has("state", &Json::is_string)) {
    const auto state = (*j)["state"].get<std::string>();
    const auto integer = &Json::is_number_integer;
    if (state == "loading" && has("done", integer) && has("total", integer)) return *j;
    if (state == "ready" && has("n_ctx", integer) && has("n_vocab", integer) && has("n_seq", integer) &&
        has("bytes", integer) && has("plan", &Json::is_string))
      return *j;
    if (state == "failed" && has("error", &Json::is_string) && has("no_room", &Json::is_boolean)) return *j;
  }
  return Error{"", "expected a message of a model's process, found something else", ""};
}

}  // namespace facet
