#include "tokenizer/media_part.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/base64.h"
#include "tokenizer/python_text.h"
#include "tokenizer/utf8.h"

namespace facet {
namespace {

using python::lower, python::member;

ContentPart unread(ContentPart::Kind kind, const std::string& where, std::string what, std::string hint) {
  ContentPart part;
  part.kind = kind;
  part.where = where;
  part.error = Error{where, std::move(what), std::move(hint)};
  return part;
}

// Of a string, or of an object's first member that is one.
const std::string* string_in(const Json* v, std::initializer_list<const char*> keys) {
  if (!v) return nullptr;
  if (v->is_string()) return &v->get_ref<const std::string&>();
  for (const char* key : keys)
    if (const Json* m = member(*v, key); m && m->is_string()) return &m->get_ref<const std::string&>();
  return nullptr;
}

}  // namespace

ContentPart media_from_base64(ContentPart::Kind kind, std::string_view data, const std::string& where) {
  auto bytes = decode_base64(data);
  if (!bytes || bytes->empty())
    return unread(kind, where, bytes ? "expected the bytes of a file in base64, found none" : "expected base64",
                  "RFC 4648, section 4, with padding and without spaces");
  ContentPart part;
  part.kind = kind;
  part.where = where;
  part.bytes = std::make_shared<const std::string>(std::move(*bytes));
  return part;
}

ContentPart media_from_url(ContentPart::Kind kind, std::string_view url, const std::string& where) {
  if (lower(std::string(url.substr(0, 5))) == "data:") {
    const size_t comma = url.find(',');
    constexpr size_t kEnd = 7;  // of ";base64"
    if (comma == std::string_view::npos || comma < kEnd ||
        lower(std::string(url.substr(comma - kEnd, kEnd))) != ";base64")
      return unread(kind, where, "expected a data: URL in base64", "write it as data:image/png;base64,...");
    return media_from_base64(kind, url.substr(comma + 1), where);
  }
  // What has a scheme is no base64, which has no colon.
  if (const size_t colon = url.substr(0, 32).find(':'); colon != std::string_view::npos) {
    ContentPart part = unread(
        kind, where, fmt::format("expected a data: URL, found {}", cut(url.substr(0, colon + 1))),
        "this server fetches nothing (serve --allow-media-urls); send the file's bytes as data:image/png;base64,...");
    part.url = url;
    return part;
  }
  return media_from_base64(kind, url, where);
}

void read_detail(ContentPart& part, const Json& object, const std::string& where) {
  if (part.error) return;
  if (const Json* detail = member(object, "detail"); detail && !detail->is_null()) {
    if (*detail == "low")
      part.budget = 70;
    else if (*detail == "high")
      part.budget = 1120;
    else if (*detail != "auto")
      part.error = Error{where + ".detail", "expected low, high or auto", ""};
  }
  if (const Json* n = member(object, "max_soft_tokens"); n && !n->is_null()) {
    constexpr int kBudgets[] = {70, 140, 280, 560, 1120};
    const auto* at = std::find_if(std::begin(kBudgets), std::end(kBudgets), [n](int b) { return *n == b; });
    if (at == std::end(kBudgets))
      part.error = Error{where + ".max_soft_tokens", "expected 70, 140, 280, 560 or 1120", ""};
    else
      part.budget = *at;
  }
}

ContentPart media_from_json(ContentPart::Kind kind, const Json& j, const std::string& where) {
  const bool picture = kind == ContentPart::Kind::kImage;
  for (const char* key : {"image_url", "image", "input_audio", "audio", "url"}) {
    const Json* v = member(j, key);
    if (!v || v->is_null()) continue;
    const std::string at = fmt::format("{}.{}", where, key);
    const std::string* text = string_in(v, {"url", "data"});
    if (!text) return unread(kind, at, "expected a data: URL or base64", "");
    ContentPart part = media_from_url(kind, *text, at);
    if (!picture) return part;
    if (v->is_object()) read_detail(part, *v, at);
    read_detail(part, j, where);
    return part;
  }
  return unread(kind, where,
                fmt::format("expected {}, found nothing", picture ? "image_url or image" : "input_audio or audio"), "");
}

std::vector<int64_t> video_frames(int64_t n) {
  std::vector<int64_t> out;
  for (int64_t i = 0; i < std::min<int64_t>(n, kVideoFrames); ++i)
    out.push_back(n <= kVideoFrames ? i : i * n / kVideoFrames);
  return out;
}

std::string frame_time(int64_t second) { return fmt::format("{:02}:{:02}", second / 60, second % 60); }

ContentPart video_from_json(const Json& j, const std::string& where) {
  constexpr auto kVideo = ContentPart::Kind::kVideo;
  constexpr const char* kShape =
      "write {\"type\": \"video\", \"frames\": [\"data:image/png;base64,...\", ...], \"fps\": 1}, fps being that of "
      "the frames";
  const Json* list = member(j, "frames");
  if (!list || !list->is_array() || list->empty())
    return unread(kVideo, where + ".frames",
                  fmt::format("expected a list of pictures, found {}", !list              ? "none"
                                                                       : list->is_array() ? "an empty one"
                                                                                          : list->type_name()),
                  kShape);
  constexpr double kMostFps = 1000, kLeastFps = 1e-4;
  const Json* fps = member(j, "fps");
  const double rate = fps && fps->is_number() ? fps->get<double>() : 0;
  if (!(rate >= kLeastFps && rate <= kMostFps))
    return unread(kVideo, where + ".fps", fmt::format("expected frames a second, {} to {}", kLeastFps, kMostFps),
                  kShape);
  auto frames = std::make_shared<std::vector<ContentPart>>();
  for (const int64_t i : video_frames(int64_t(list->size()))) {
    const std::string at = fmt::format("{}.frames[{}]", where, i);
    const std::string* text = string_in(&(*list)[size_t(i)], {"url", "data"});
    ContentPart frame = text ? media_from_url(ContentPart::Kind::kImage, *text, at)
                             : unread(ContentPart::Kind::kImage, at, "expected a data: URL or base64", "");
    frame.budget = kFrameTokens;
    read_detail(frame, j, where);
    // The quotient may be a bit below a whole second that it stands for: 3 / 0.1 is not.
    frame.before = before_frame(frames->size(), int64_t(double(i) / rate + 1e-9));
    frames->push_back(std::move(frame));
  }
  ContentPart part;
  part.kind = kVideo;
  part.where = where;
  part.frames = std::move(frames);
  return part;
}

}  // namespace facet
