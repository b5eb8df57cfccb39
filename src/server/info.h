#pragma once
#include <string>
#include <vector>

#include "server/openai.h"

// What the server says about itself and its model. Pure functions.
namespace facet {

struct ServerInfo {
  std::string model = {};  // its name in answers
  std::vector<std::string> aliases = {};
  std::string file = {};  // of the model, without its folder
  std::string chat_template = {}, bos = {}, eos = {};
  std::string version = {};
  int64_t started = 0;  // seconds of Unix time
  int n_ctx = 0, n_vocab = 0, n_seq = 0, max_tokens = -1;
  Sampling sampling = {};
  bool takes_pictures = false, takes_sound = false;
};

Json model_json(const ServerInfo& s);
Json models_json(const ServerInfo& s);
Json props_json(const ServerInfo& s);      // in llama-server's shape
Json tokenizer_json(const ServerInfo& s);  // in vLLM's

int64_t unix_now();  // seconds

// "a%2Fb" to "a/b"; what is no escape stays.
std::string percent_decoded(std::string_view s);

}  // namespace facet
