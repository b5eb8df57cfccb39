#include "server/media_intake.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "server/request_media.h"

namespace facet {

MediaTokens media_tokens(const Tokenizer& t) {
  return {.image_begin = t.find("<|image>"),
          .image = t.find("<|image|>"),
          .image_end = t.find("<image|>"),
          .audio_begin = t.find("<|audio>"),
          .audio = t.find("<|audio|>"),
          .audio_end = t.find("<audio|>")};
}

namespace {

void append(std::vector<int32_t>& to, const std::vector<int32_t>& ids) { to.insert(to.end(), ids.begin(), ids.end()); }

// The parts of ascending ranges that lie in [begin, end), counted from its begin.
std::vector<TextRange> ranges_in(std::span<const TextRange> all, size_t begin, size_t end) {
  std::vector<TextRange> out;
  for (const TextRange& r : all)
    if (r.end > begin && r.begin < end) out.push_back({std::max(r.begin, begin) - begin, std::min(r.end, end) - begin});
  return out;
}

}  // namespace

PromptIds prompt_ids(const std::vector<PromptPart>& parts, const Tokenizer& t) {
  PromptIds p;
  for (const PromptPart& part : parts) {
    if (const auto* text = std::get_if<std::string>(&part))
      append(p.ids, t.encode(*text, /*add_bos=*/p.ids.empty(), /*parse_special=*/true));
    if (const auto* ids = std::get_if<std::vector<int32_t>>(&part)) append(p.ids, *ids);
    const auto* media = std::get_if<ContentPart>(&part);
    if (!media) continue;
    if (p.ids.empty()) p.ids.push_back(t.bos());
    p.media.push_back(media->bytes.get()), p.at.push_back(p.ids.size());
  }
  return p;
}

PromptIds prompt_ids(const ChatPrompt& prompt, bool parse_special, const Tokenizer& t) {
  PromptIds p;
  size_t from = 0;
  // Control tokens are found apart from what stands beside them: texts between placeholders have their ids alone.
  const auto text_until = [&](size_t end) {
    if (end == from && !p.ids.empty()) return;
    const auto plain = parse_special ? std::vector<TextRange>{} : ranges_in(prompt.plain, from, end);
    append(p.ids, t.encode(std::string_view(prompt.text).substr(from, end - from), /*add_bos=*/p.ids.empty(),
                           /*parse_special=*/true, plain));
  };
  for (const RenderedChat::Media& m : prompt.media) {
    text_until(m.place.begin);
    from = m.place.end;
    p.media.push_back(m.part.bytes.get()), p.at.push_back(p.ids.size());
  }
  text_until(prompt.text.size());
  return p;
}

std::string text_of_prompt(std::span<const int32_t> ids, const Tokenizer& t, bool show_special) {
  std::vector<int32_t> text;
  std::copy_if(ids.begin(), ids.end(), std::back_inserter(text), [](int32_t id) { return !is_soft_id(id); });
  return t.decode(text, show_special);
}

// From bytes to an open picture; a sound takes time, and is opened later.
void MediaOfRequest::Load::begin(MediaEncoder& encoder, MediaCache& cache) {
  const std::string& file = fetched.empty() ? *bytes : fetched;
  const bool picture = part.kind == ContentPart::Kind::kImage;
  load = std::make_unique<MediaLoad>(picture, std::as_bytes(std::span(file)), part.where, part.budget);
  if (!picture) return;
  if (auto ok = load->open(encoder, cache); !ok) error = ok.error();
}

void MediaOfRequest::collect(ApiRequest& r, MediaEncoder& encoder, MediaCache& cache) {
  if (std::exchange(is_collected_, true)) return;
  for_each_media(r, [&](ContentPart& part, bool) {
    loads_.push_back(std::make_unique<Load>(Load{.bytes = part.bytes, .part = part}));
    if (!part.bytes->empty()) loads_.back()->begin(encoder, cache);
  });
}

void MediaOfRequest::advance() {
  const auto some = [&](auto&& is) {
    return std::any_of(loads_.begin(), loads_.end(), [&](const auto& l) { return !l->error && is(*l); });
  };
  stage = Stage::kNone;
  if (some([](const Load& l) { return !l.load; }))
    stage = Stage::kFetch;
  else if (some([](const Load& l) { return !l.load->is_open(); }))
    stage = Stage::kOpen;
}

std::vector<std::function<void()>> MediaOfRequest::steps(MediaEncoder& encoder, MediaCache& cache, const Fetch& fetch) {
  std::vector<std::function<void()>> steps;
  for (const std::unique_ptr<Load>& p : loads_) {
    Load* l = p.get();
    if (l->error || !l->is_needed) continue;
    if (stage == Stage::kFetch && !l->load)
      steps.push_back([l, &encoder, &cache, &fetch] {
        auto bytes = fetch(l->part.url);
        if (!bytes)
          l->error =
              Error{l->part.where, fmt::format("{}: {}", bytes.error().where, bytes.error().what), bytes.error().hint};
        else if (bytes->empty())
          l->error = Error{l->part.where, "expected a file, found an empty one", ""};
        else
          l->fetched = std::move(*bytes), l->begin(encoder, cache);
      });
    else if ((stage == Stage::kOpen && !l->load->is_open()) || stage == Stage::kEncode)
      steps.push_back([l, opens = stage == Stage::kOpen, &encoder, &cache] {
        auto ok = opens ? l->load->open(encoder, cache) : l->load->encode(encoder, cache);
        if (!ok) l->error = ok.error();
      });
  }
  return steps;
}

const MediaOfRequest::Load* MediaOfRequest::find(const std::string* bytes) const {
  for (const std::unique_ptr<Load>& l : loads_)
    if (l->bytes.get() == bytes) return l.get();
  return nullptr;
}

void MediaOfRequest::mark_errors(ApiRequest& r) const {
  for_each_media(r, [&](ContentPart& part, bool) {
    if (const Load* l = find(part.bytes.get()); l && l->error) part.error = l->error;
  });
}

int MediaOfRequest::tokens(const PromptIds& p) const {
  int64_t n = int64_t(p.ids.size());
  for (const std::string* bytes : p.media)
    if (const Load* l = find(bytes); l && l->load) n += l->load->n_tokens() + 2 * l->load->n_items();
  return int(std::min<int64_t>(n, INT32_MAX));
}

int64_t MediaOfRequest::row_bytes(std::span<const PromptIds> prompts, int width) const {
  int64_t n = 0;
  for (const PromptIds& p : prompts)
    for (const std::string* bytes : p.media)
      if (const Load* l = find(bytes); l && l->load) n += int64_t(l->load->n_tokens()) * width * int64_t(sizeof(float));
  return n;
}

bool MediaOfRequest::leave_out(ApiRequest& r, int64_t tokens, int64_t bytes, int width) {
  bool some = false;
  constexpr int kLine = 12;  // tokens of the line that comes in its place, or a few more
  for_each_media(r, [&](ContentPart& part, bool may) {
    const Load* l = find(part.bytes.get());
    if (!may || !l || !l->load || (tokens <= 0 && bytes <= 0)) return;
    part.error = Error{part.where, "expected a conversation that fits", ""};
    part.reason = "there is no room for it";
    tokens -= std::max(1, l->load->n_tokens() - kLine), bytes -= int64_t(l->load->n_tokens()) * width * 4;
    some = true;
  });
  return some;
}

void MediaOfRequest::keep(std::span<const PromptIds> prompts) {
  for (const std::unique_ptr<Load>& l : loads_)
    l->is_needed = std::any_of(prompts.begin(), prompts.end(), [&](const PromptIds& p) {
      return std::find(p.media.begin(), p.media.end(), l->bytes.get()) != p.media.end();
    });
}

Status MediaOfRequest::insert(const MediaTokens& ids, const std::shared_ptr<Room::Part>& room, PromptIds& p,
                              std::vector<MediaSpan>& spans) const {
  std::vector<MediaItem> items;
  std::vector<size_t> at;
  for (size_t i = 0; i < p.media.size(); ++i) {
    const Load* l = find(p.media[i]);
    if (!l || !l->load || l->load->items().empty()) return Error{"", "a picture or sound was not encoded", ""};
    for (const MediaItem& item : l->load->items()) items.push_back(item), at.push_back(p.at[i]);
  }
  struct Held {
    MediaCache::Rows rows;
    std::shared_ptr<Room::Part> room;
  };
  for (MediaItem& item : items) {
    const auto held = std::make_shared<const Held>(Held{item.rows, room});
    item.rows = MediaCache::Rows(held, held->rows.get());
  }
  return insert_media(ids, items, at, p.ids, spans);
}

MediaUse MediaOfRequest::use(const PromptIds& p) const {
  MediaUse u;
  for (const std::string* bytes : p.media) {
    const Load* l = find(bytes);
    if (!l || !l->load) continue;
    (l->load->is_picture() ? u.image_tokens : u.audio_tokens) += l->load->n_tokens();
    u.n += l->load->n_items(), u.n_encoded += l->load->n_encoded(), u.encode_s += l->load->encode_s();
  }
  return u;
}

std::string media_metrics(const MediaCache::Stats& s) {
  std::string out;
  const auto add = [&](std::string_view name, std::string_view help, const char* type, auto value) {
    out += fmt::format("# HELP {} {}\n# TYPE {} {}\n{} {}\n", name, help, name, type, name, value);
  };
  add("facet_media_cache_bytes", "Encoded pictures and sounds that are kept.", "gauge", s.bytes);
  add("facet_media_cache_hits_total", "Pictures and pieces of sound that were not encoded again.", "counter", s.hits);
  add("facet_media_encoded_total", "Pictures and pieces of sound that were encoded.", "counter", s.misses);
  add("facet_media_encode_seconds_total", "Spent in the encoders.", "counter", s.encode_s);
  return out;
}

}  // namespace facet
