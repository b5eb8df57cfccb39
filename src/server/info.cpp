#include "server/info.h"
#include "server/request_media.h"
#include "tokenizer/json.h"

#include <charconv>
#include <chrono>

namespace facet {

namespace {

Json input_modalities(const ServerInfo& s) {
  Json j = Json::array({"text"});
  if (s.takes_pictures) j.push_back("image");
  if (s.takes_sound) j.push_back("audio");
  return j;
}

}  // namespace

Json model_json(const ServerInfo& s) {
  return {{"id", s.model},
          {"object", "model"},
          {"created", s.started},
          {"owned_by", "facet"},
          {"aliases", s.aliases},
          {"meta", {{"n_ctx", s.n_ctx}, {"n_vocab", s.n_vocab}}},
          {"architecture", {{"input_modalities", input_modalities(s)}, {"output_modalities", Json::array({"text"})}}}};
}

Json models_json(const ServerInfo& s) { return {{"object", "list"}, {"data", Json::array({model_json(s)})}}; }

Json props_json(const ServerInfo& s) {
  const Sampling& d = s.sampling;
  Json params = {{"seed", d.seed},
                 {"temperature", d.temperature},
                 {"top_k", d.top_k},
                 {"top_p", d.top_p},
                 {"min_p", d.min_p},
                 {"repeat_last_n", d.repeat_last_n},
                 {"repeat_penalty", d.repeat_penalty},
                 {"presence_penalty", d.presence_penalty},
                 {"frequency_penalty", d.frequency_penalty},
                 {"n_predict", s.max_tokens}};
  return {{"default_generation_settings", {{"n_ctx", s.n_ctx}, {"params", std::move(params)}}},
          {"total_slots", s.n_seq},
          {"model_alias", s.model},
          {"model_path", s.file},
          {"modalities", {{"vision", s.takes_pictures}, {"audio", s.takes_sound}}},
          {"media_marker", kMediaMarker},
          {"chat_template", s.chat_template},
          {"bos_token", s.bos},
          {"eos_token", s.eos},
          {"is_sleeping", false},
          {"build_info", "facet " + s.version}};
}

Json tokenizer_json(const ServerInfo& s) {
  return {{"bos_token", s.bos},
          {"eos_token", s.eos},
          {"chat_template", s.chat_template},
          {"vocab_size", s.n_vocab},
          {"model_max_length", s.n_ctx}};
}

int64_t unix_now() {
  using std::chrono::system_clock;
  return std::chrono::duration_cast<std::chrono::seconds>(system_clock::now().time_since_epoch()).count();
}

std::string percent_decoded(std::string_view s) {
  std::string out;
  for (size_t i = 0; i < s.size(); ++i) {
    unsigned value = 0;
    const char* first = s.data() + i + 1;
    if (s[i] == '%' && i + 2 < s.size() && std::from_chars(first, first + 2, value, 16).ptr == first + 2) {
      out += char(value);
      i += 2;
    } else {
      out += s[i];
    }
  }
  return out;
}

}  // namespace facet
