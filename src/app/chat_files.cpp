#include "app/chat_files.h"

#include <fmt/format.h>
#include <unistd.h>

#include <iterator>
#include <string_view>
#include <utility>

#include "base/files.h"
#include "tokenizer/json.h"
#include "tokenizer/utf8.h"

namespace facet {
namespace {

constexpr uint64_t kMostText = uint64_t(1) << 20, kMostSaved = uint64_t(64) << 20;

Json content_of(const Message& m) {
  if (const auto* text = std::get_if<std::string>(&m.content)) return *text;
  Json parts = Json::array();
  if (const auto* list = std::get_if<std::vector<ContentPart>>(&m.content))
    for (const ContentPart& p : *list) {
      if (p.before.starts_with(' ')) continue;  // a frame of the video that stands before it
      Json part = Json::object();
      part["type"] = p.kind == ContentPart::Kind::kText    ? "text"
                     : p.kind != ContentPart::Kind::kImage ? "audio"
                     : p.before.empty()                    ? "image"
                                                           : "video";
      if (p.kind == ContentPart::Kind::kText)
        part["text"] = p.text;
      else
        part["path"] = p.bytes ? *p.bytes : "";
      parts.push_back(std::move(part));
    }
  return parts;
}

bool is_text(const Json& object, const char* key) {
  return object.is_object() && object.contains(key) && object.at(key).is_string();
}

Result<Content> content_from(const Json& content, const std::string& role, const std::string& path,
                             const std::string& where, const Attach& attach) {
  if (content.is_string()) return Content(content.get<std::string>());
  if (!content.is_array())
    return Error{path, where + ".content: expected a text or a list of parts, found neither", ""};
  std::vector<ContentPart> parts;
  for (const Json& p : content) {
    const std::string type = is_text(p, "type") ? p.at("type").get<std::string>() : "";
    if (type == "text" && is_text(p, "text")) {
      parts.push_back({ContentPart::Kind::kText, p.at("text").get<std::string>()});
    } else if ((type == "image" || type == "video" || type == "audio") && is_text(p, "path") && role == "user") {
      auto some = attach(p.at("path").get<std::string>(), type == "image"   ? MediaKind::kPicture
                                                          : type == "video" ? MediaKind::kVideo
                                                                            : MediaKind::kSound);
      if (!some) return some.error();
      std::move(some->begin(), some->end(), std::back_inserter(parts));
    } else {
      return Error{path, where + ".content: expected parts of type text, image, video or audio, found another", ""};
    }
  }
  return Content(std::move(parts));
}

}  // namespace

Result<std::string> read_text_file(const std::string& path) {
  auto text = read_file(path, kMostText);
  if (!text) return text.error();
  for (size_t at = 0; at < text->size();) {
    const auto c = static_cast<unsigned char>((*text)[at]);
    const Utf8Head head = utf8_head(std::string_view(*text).substr(at, 4));
    const bool control = (c < ' ' && c != '\t' && c != '\n' && c != '\r' && c != '\f') || c == 0x7F;
    if (head.kind != Utf8Head::kValid || control)
      return Error{path, fmt::format("expected text in UTF-8, found byte 0x{:02X} at {}", c, at),
                   "a binary file cannot be read; /image and /audio take pictures and sounds"};
    at += size_t(head.length);
  }
  return text;
}

Status save_conversation(const std::string& path, const std::vector<Message>& messages) {
  // A name that was meant for /load, or a slip of the fingers, loses no file of another kind.
  if (::access(path.c_str(), F_OK) == 0) {
    const auto old = read_file(path, kMostSaved);
    if (!old) return old.error();
    const auto j = parse_json(*old, path);
    if (!j || !j->is_object() || !j->contains("messages"))
      return Error{path, "expected a new name or a saved conversation, found another file", "choose another name"};
  }
  Json list = Json::array();
  for (const Message& m : messages) {
    Json one = Json::object();
    one["role"] = m.role;
    one["content"] = content_of(m);
    if (!m.reasoning.empty()) one["reasoning_content"] = m.reasoning;
    list.push_back(std::move(one));
  }
  Json all = Json::object();
  all["messages"] = std::move(list);
  auto file = OutputFile::create_private(path);
  if (!file) return file.error();
  if (auto ok = file->write(dump_json(all) + "\n"); !ok) return ok;
  return file->finish();
}

Result<std::vector<Message>> load_conversation(const std::string& path, const Attach& attach) {
  auto text = read_file(path, kMostSaved);
  if (!text) return text.error();
  auto j = parse_json(*text, path);
  if (!j) return j.error();
  if (!j->is_object() || !j->contains("messages") || !j->at("messages").is_array())
    return Error{path, "messages: expected a list, found none", "/save writes such files"};
  std::vector<Message> messages;
  for (const Json& one : j->at("messages")) {
    const std::string where = fmt::format("messages[{}]", messages.size());
    if (!is_text(one, "role") || !one.contains("content"))
      return Error{path, where + ": expected role and content, found less", "/save writes such files"};
    Message m;
    m.role = one.at("role").get<std::string>();
    if (m.role != "user" && m.role != "assistant" && !(m.role == "system" && messages.empty()))
      return Error{path,
                   fmt::format("{}.role: expected user, assistant or a first system, found \"{}\"", where, m.role), ""};
    if (is_text(one, "reasoning_content")) m.reasoning = one.at("reasoning_content").get<std::string>();
    auto content = content_from(one.at("content"), m.role, path, where, attach);
    if (!content) return content.error();
    m.content = std::move(*content);
    messages.push_back(std::move(m));
  }
  return messages;
}

}  // namespace facet
