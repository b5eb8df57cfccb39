#include "daemon/json_lines.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <set>

#include "daemon/media_prompt.h"
#include "model/types.h"
#include "tokenizer/tokenizer.h"

namespace facet {
namespace {

using Json = nlohmann::json;

std::string dump(const Json& j) { return j.dump(-1, ' ', false, Json::error_handler_t::replace); }

// Reads the fields of a request; the first that is wrong is told, and so is one that is unknown.
class Fields {
 public:
  explicit Fields(const Json& j) : j_(j) {}
  template <class T>
  void number(const char* name, T& to, double least, double most) {
    const Json* v = find(name);
    if (!v) return;
    const bool whole = std::is_floating_point_v<T> || v->is_number_integer();
    const double x = v->is_number() && whole ? v->get<double>() : std::numeric_limits<double>::quiet_NaN();
    if (!(x >= least && x <= most))
      return wrong(name,
                   fmt::format("expected {} in [{}, {}], found {}",
                               std::is_floating_point_v<T> ? "a number" : "a whole number", least, most, found(*v)));
    to = v->get<T>();
  }
  void flag(const char* name, bool& to) {
    if (const Json* v = find(name)) v->is_boolean() ? void(to = v->get<bool>()) : wrong(name, "expected true or false");
  }
  void text(const char* name, std::string& to) {
    if (const Json* v = find(name))
      v->is_string() ? void(to = v->get<std::string>()) : wrong(name, "expected a string");
  }
  void ids(const char* name, std::vector<int32_t>& to) {
    const Json* v = find(name);
    if (!v) return;
    if (!v->is_array()) return wrong(name, "expected an array of token ids");
    for (const Json& id : *v) {
      if (!id.is_number_integer() || id.get<int64_t>() < 0 || id.get<int64_t>() > std::numeric_limits<int32_t>::max())
        return wrong(name, "expected token ids, found " + found(id));
      to.push_back(id.get<int32_t>());
    }
  }
  const Json* find(const char* name) {
    known_.insert(name);
    const auto i = j_.find(name);
    return i == j_.end() ? nullptr : &*i;
  }
  // What is wrong; empty: nothing.
  std::string verdict() {
    for (const auto& [name, value] : j_.items())
      if (error_.empty() && !known_.contains(name)) error_ = name + ": unknown field";
    return error_;
  }
  void wrong(const char* name, const std::string& what) {
    if (error_.empty()) error_ = fmt::format("{}: {}", name, what);
  }

 private:
  static std::string found(const Json& v) { return dump(v).substr(0, 40); }
  const Json& j_;
  std::set<std::string> known_;
  std::string error_;
};

}  // namespace

void JsonLines::say_error(const std::string& id, const std::string& what) {
  Json j{{"event", "error"}, {"message", what}};
  if (!id.empty()) j["id"] = Json::parse(id);
  say_(dump(j));
}

bool JsonLines::handshake(std::string_view line) {
  const Json j = Json::parse(line, nullptr, false);
  const bool ours = j.is_object() && j.value("protocol", Json()) == "facet" && j.value("version", Json()) == kVersion;
  Json answer{{"protocol", "facet"}, {"version", kVersion}};
  if (!ours) {
    answer["event"] = "error";
    answer["message"] = R"(expected {"protocol": "facet", "version": 1})";
  } else {
    answer["model"] = engine_.config().model;
    answer["vocabulary"] = engine_.model().n_vocab;
    answer["context"] = engine_.config().n_ctx;
    answer["sequences"] = engine_.config().max_seq;
    const MediaEncoder* encoder = engine_.media();
    answer["modalities"] = {{"vision", encoder && encoder->sees()}, {"audio", encoder && encoder->hears()}};
  }
  say_(dump(answer));
  return ours;
}

bool JsonLines::command(std::string_view line) {
  if (line.size() > kLine) return say_error("", fmt::format("expected a line of at most {} bytes", kLine)), true;
  const Json j = Json::parse(line, nullptr, false);
  if (!j.is_object()) return say_error("", "expected a JSON object on one line"), true;
  const Json id = j.value("id", Json());
  const Json op = j.value("op", Json());
  if (op == "quit") return false;
  const bool named = (id.is_string() && id.get_ref<const std::string&>().size() <= 128) || id.is_number_integer();
  if (!named) return say_error("", "id: expected a string of at most 128 bytes, or a whole number"), true;
  const std::string key = dump(id);
  if (op == "generate") {
    generate(key, j);
  } else if (op == "cancel") {
    const std::lock_guard lock(mutex_);
    if (const auto i = running_.find(key); i != running_.end()) engine_.cancel(i->second);
    // One that is over has been told already.
  } else {
    say_error(key, "op: expected generate, cancel or quit");
  }
  return true;
}

void JsonLines::generate(const std::string& id, const Json& json) {
  Fields f(json);
  for (const char* read : {"id", "op"}) f.find(read);
  Request r;
  std::string text;
  bool seed_given = f.find("seed") != nullptr, add_bos = true;
  f.ids("prompt", r.prompt), f.text("text", text), f.flag("add_bos", add_bos);
  f.number("n_predict", r.max_tokens, -1, 1 << 24);
  f.flag("ignore_eos", r.ignore_eos), f.flag("draft", r.draft), f.flag("cache", r.cache);
  f.text("cache_salt", r.cache_salt), f.ids("stop_ids", r.stop_ids);
  Sampling& s = r.sampling;
  f.number("temperature", s.temperature, 0, 1e6), f.number("top_k", s.top_k, 0, 1 << 24);
  f.number("top_p", s.top_p, 0, 1), f.number("min_p", s.min_p, 0, 1);
  f.number("repeat_penalty", s.repeat_penalty, 1e-3, 1e3);
  f.number("presence_penalty", s.presence_penalty, -1e3, 1e3);
  f.number("frequency_penalty", s.frequency_penalty, -1e3, 1e3);
  f.number("seed", s.seed, 0, 9007199254740992.);
  const Tokenizer* t = engine_.tokenizer();
  if (f.find("text") && f.find("prompt")) f.wrong("prompt", "expected ids or a text, found both");
  if (f.find("text") && !t) f.wrong("text", "the model file has no vocabulary");
  const Json* media = f.find("multimodal_data");
  if (media && !f.find("text")) f.wrong("multimodal_data", "expected a text beside it, with a marker for each");
  if (const std::string error = f.verdict(); !error.empty()) return say_error(id, error);
  if (!seed_given) s.seed = std::random_device{}();
  std::shared_ptr<StreamDecoder> decoder;
  if (f.find("text")) {
    if (media) {
      auto prompt = media_prompt(engine_, text, *media, add_bos, cache_);
      if (!prompt) return say_error(id, prompt.error().message());
      r.prompt = std::move(prompt->ids), r.media = std::move(prompt->media);
    } else {
      r.prompt = t->encode(text, add_bos, /*parse_special=*/true);
    }
    decoder = std::make_shared<StreamDecoder>(*t, false);
  }

  const std::lock_guard lock(mutex_);  // the answer's first event comes after this
  if (running_.contains(id)) return say_error(id, "id: a request with it is running");
  if (running_.size() >= kMostRequests)
    return say_error(id, fmt::format("expected at most {} requests at once", kMostRequests));
  const auto event = [id](const char* name) { return Json{{"id", Json::parse(id)}, {"event", name}}; };
  const auto submitted = engine_.submit(
      std::move(r), {.tokens =
                         [this, event, decoder](RequestId, std::span<const int32_t> ids) {
                           Json j = event("tokens");
                           j["ids"] = ids;
                           if (decoder) {
                             std::string piece;
                             for (const int32_t i : ids) piece += decoder->push(i);
                             j["text"] = piece;
                           }
                           say_(dump(j));
                         },
                     .done =
                         [this, id, event, decoder](RequestId, Stop why, const Usage& u, const std::string& error) {
                           Json j = event(why == Stop::kError ? "error" : "done");
                           if (why == Stop::kError) j["message"] = error;
                           if (decoder && why != Stop::kError) j["text"] = decoder->finish();
                           j["stop"] = stop_name(why);
                           j["prompt_tokens"] = u.prompt, j["cached_tokens"] = u.cached;
                           j["generated_tokens"] = u.generated;
                           j["drafted"] = u.drafted, j["accepted"] = u.accepted;
                           j["queue_s"] = u.queue_s, j["prefill_s"] = u.prefill_s, j["decode_s"] = u.decode_s;
                           finish(id);
                           say_(dump(j));
                         }});
  if (!submitted) return say_error(id, submitted.error().message());
  running_[id] = *submitted;
}

// Not before generate() has noted it.
void JsonLines::finish(const std::string& id) {
  const std::lock_guard lock(mutex_);
  running_.erase(id);
}

}  // namespace facet
