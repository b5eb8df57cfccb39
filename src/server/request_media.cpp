#include "server/request_media.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <utility>

#include "base/files.h"
#include "media/picture.h"
#include "media/sound.h"
#include "server/api_fields.h"
#include "tokenizer/utf8.h"

namespace facet {
namespace {

using Kind = ContentPart::Kind;

bool is_frame(const ContentPart& p) { return p.kind == Kind::kImage && !p.before.empty(); }

const char* media_name(const ContentPart& p) {
  switch (p.kind) {
    case Kind::kImage:
      return is_frame(p) ? "video" : "picture";
    case Kind::kAudio:
      return "sound";
    case Kind::kVideo:
      return "video";
    case Kind::kFile:
    case Kind::kText:
      break;
  }
  return "file";
}

// Of a video, the first frame's time is the one without a space before it.
bool begins_video(const ContentPart& p) { return is_frame(p) && p.before[0] != ' '; }

bool is_media(const ContentPart& p) { return p.kind != Kind::kText; }

// Parts with their lines: texts beside a line are one text with it, so that it stands on a line of its own.
std::vector<ContentPart> with_lines(const std::vector<ContentPart>& parts, Dropped& left_out) {
  std::vector<ContentPart> out;
  bool line = false;   // the last one is a line of ours
  bool frame = false;  // and stands for a frame, and so for all that follow it
  for (const ContentPart& p : parts) {
    const bool now = is_media(p) && p.error;
    const bool told = now && frame && is_frame(p) && !begins_video(p);
    frame = now && is_frame(p);
    if (told) continue;
    if (is_media(p) && !now) {
      out.push_back(p);
      line = false;
      continue;
    }
    if ((now || line) && !out.empty() && !is_media(out.back())) {
      std::string& text = out.back().text;
      if (!text.empty() && !text.ends_with('\n')) text += '\n';
      text += now ? media_line(p) : p.text;
    } else {
      out.push_back({Kind::kText, now ? media_line(p) : p.text});
    }
    if (now) left_out.add(&Dropped::media, media_name(p));
    line = now;
  }
  return out;
}

void refuse(ContentPart& p, std::string where, std::string what, std::string hint, const char* reason) {
  p.error = Error{std::move(where), std::move(what), std::move(hint)};
  p.reason = reason;
}

constexpr std::string_view kFileUrl = "file://";

// A file below `folder`, also through links.
void open_file(ContentPart& p, const std::string& folder) {
  namespace fs = std::filesystem;
  std::error_code ec;
  const fs::path base = fs::canonical(folder, ec);
  const fs::path file = ec ? base : fs::canonical(base / p.url.substr(kFileUrl.size()), ec);
  const auto [end, at] = std::mismatch(base.begin(), base.end(), file.begin(), file.end());
  if (ec || end != base.end() || at == file.end())
    return refuse(p, p.where, fmt::format("expected a file below --media-path, found {}", cut(p.url)),
                  "write it as file://NAME, seen from there", "it cannot be read");
  auto bytes = read_file(file, p.kind == Kind::kImage ? PictureLimits{}.bytes : SoundLimits{}.bytes);
  if (!bytes) return refuse(p, p.where, bytes.error().what, bytes.error().hint, "it cannot be read");
  p.error.reset();
  p.bytes = std::make_shared<const std::string>(std::move(*bytes));
}

// What has a place in the request: with its bytes, to be fetched, or with an error.
void find_bytes(ContentPart& p, const std::string& at, const ApiDefaults& d) {
  if (!d.media_path.empty() && p.url.starts_with(kFileUrl))
    open_file(p, d.media_path);
  else if (d.fetch_media && (p.url.starts_with("https://") || p.url.starts_with("http://")))
    p.error.reset(), p.bytes = std::make_shared<const std::string>();  // fetched later
  else if (!p.bytes && !p.error)
    refuse(p, at, fmt::format("expected the bytes of a {}", media_name(p)),
           "this server takes them in base64, as data: URLs", "it cannot be read");
}

}  // namespace

size_t newest_of_user(const std::vector<Message>& messages) {
  for (size_t i = messages.size(); i-- > 0 && messages[i].role != "assistant";)
    if (messages[i].role == "user") return i;
  return messages.size();
}

std::string media_place(const Json& list, const char* key) {
  for (size_t i = list.size(); i-- > 0;) {
    const Json& item = list[i];
    if (!item.is_object() || !item.contains("content") || !item["content"].is_array()) continue;
    const Json& blocks = item["content"];
    for (size_t b = 0; b < blocks.size(); ++b) {
      const auto type = blocks[b].is_object() ? blocks[b].find("type") : blocks[b].end();
      if (type == blocks[b].end() || !type->is_string()) continue;
      const auto& name = type->get_ref<const std::string&>();
      for (const char* kind : {"image", "audio", "video", "document", "file", "screenshot"})
        if (name.find(kind) != std::string::npos) return fmt::format("{}[{}].content[{}].type", key, i, b);
    }
  }
  return key;
}

std::string media_line(const ContentPart& p) { return fmt::format("[{} left out: {}]", media_name(p), p.reason); }

Content content_of(std::vector<ContentPart> parts) {
  if (std::any_of(parts.begin(), parts.end(), is_media)) return parts;
  std::string text;
  for (const ContentPart& p : parts) text += p.text;
  return text;
}

std::string text_without_media(const std::vector<ContentPart>& parts, Dropped& left_out) {
  std::vector<ContentPart> all = parts;
  for (ContentPart& p : all)
    if (is_media(p)) refuse(p, p.where, "expected text", "", "this model takes none");
  std::string out;
  for (const ContentPart& p : with_lines(all, left_out)) out += p.text;
  return out;
}

Status settle_media(ApiRequest& r) {
  const auto failed = [](const ContentPart& p) { return is_media(p) && p.error; };
  const size_t newest = newest_of_user(r.messages);
  for (size_t i = 0; i < r.messages.size(); ++i) {
    const auto* parts = std::get_if<std::vector<ContentPart>>(&r.messages[i].content);
    if (!parts) continue;
    const auto at = std::find_if(parts->begin(), parts->end(), failed);
    if (at == parts->end()) continue;
    if (i == newest) return *at->error;
    r.messages[i].content = content_of(with_lines(*parts, r.left_out));
  }
  const auto check = [&](const std::vector<PromptPart>& prompt) -> Status {
    for (const PromptPart& part : prompt)
      if (const auto* p = std::get_if<ContentPart>(&part); p && p->error) return *p->error;
    return Ok{};
  };
  for (const std::vector<PromptPart>& p : r.more_prompts)
    if (auto ok = check(p); !ok) return ok;
  return check(r.prompt);
}

void leave_media_out(Fields& f, ApiRequest& r, const ApiDefaults& d, const std::string& last) {
  size_t n = 0, n_frames = 0;
  for (size_t i = r.messages.size(); i-- > 0;) {
    Message& m = r.messages[i];
    auto* parts = std::get_if<std::vector<ContentPart>>(&m.content);
    if (!parts) continue;
    for (size_t k = parts->size(); k-- > 0;) {
      ContentPart& p = (*parts)[k];
      if (!is_media(p)) continue;
      const std::string at = !last.empty() ? last : fmt::format("messages[{}].content[{}].type", i, k);
      const bool seen = p.kind == Kind::kImage || p.kind == Kind::kVideo;
      const bool taken = (seen && d.takes_pictures) || (p.kind == Kind::kAudio && d.takes_sound);
      if (!taken)
        refuse(p, at, fmt::format("expected text, found a {}", media_name(p)),
               d.no_media.empty() ? "not supported" : d.no_media, "this model takes none");
      else if (m.role == "system" || m.role == "developer")
        refuse(p, at, fmt::format("expected text, found a {}", media_name(p)), "", "system messages have none");
      else if (++n > kMaxMedia)
        refuse(p, at, fmt::format("expected at most {} pictures, videos and sounds in a request", kMaxMedia),
               "send fewer of them", "a request has too many");
      else if (!p.frames)
        find_bytes(p, at, d);
      else if ((n_frames += p.frames->size()) > kMaxFrames)
        refuse(p, at, fmt::format("expected at most {} frames of videos in a request", kMaxFrames),
               "send fewer of them", "a request has too many");
      else {
        std::vector<ContentPart> frames = *p.frames;  // p goes
        for (ContentPart& frame : frames) find_bytes(frame, frame.where, d);
        parts->erase(parts->begin() + ptrdiff_t(k));
        parts->insert(parts->begin() + ptrdiff_t(k), frames.begin(), frames.end());
      }
    }
  }
  if (auto ok = settle_media(r); !ok) f.fail(ok.error());
}

}  // namespace facet
