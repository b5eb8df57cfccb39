#include "tokenizer/vocab.h"

#include <fmt/format.h>

#include "formats/gguf.h"

namespace facet {
namespace {

constexpr const char* kConvertHint = "convert the model again with llama.cpp's convert_hf_to_gguf.py";

Result<std::vector<std::string>> strings(const GgufFile& file, std::string_view key) {
  Result<std::vector<std::string_view>> views = file.get_strings(key);
  if (!views) return views.error();
  return std::vector<std::string>(views->begin(), views->end());
}

// An optional list of token ids; a scalar counts as a list of one.
Result<std::vector<int32_t>> optional_ids(const GgufFile& file, std::string_view key, size_t n_vocab) {
  std::vector<int32_t> ids;
  if (!file.find_meta(key)) return ids;
  Result<std::vector<int64_t>> v = file.get_ints(key, 0);
  if (!v) return v.error();
  for (const int64_t id : *v) {
    if (id < 0 || uint64_t(id) >= n_vocab)
      return Error{file.path(), fmt::format("{}: expected ids below {}, found {}", key, n_vocab, id), kConvertHint};
    ids.push_back(int32_t(id));
  }
  return ids;
}

}  // namespace

Result<Vocab> vocab_from_gguf(const GgufFile& file) {
  Vocab v;
  v.where = file.path();
  Result<std::string> model = file.get_string("tokenizer.ggml.model");
  if (!model) return model.error();
  if (*model == "no_vocab") return v;
  std::string pre;
  if (file.find_meta("tokenizer.ggml.pre")) {
    Result<std::string> found = file.get_string("tokenizer.ggml.pre");
    if (!found) return found.error();
    pre = std::move(*found);
  }
  // Ollama's converter writes "llama", the name of another algorithm, and says what it means in the second key.
  if (*model != "gemma4" && !(*model == "llama" && pre == "gemma4"))
    return Error{file.path(), fmt::format("tokenizer.ggml.model: expected gemma4, found {}", *model),
                 *model == "llama" ? "without tokenizer.ggml.pre = gemma4 this is the tokenizer of Gemma 3 and older; "
                                     "facet runs Gemma 4"
                                   : "facet runs Gemma 4 models"};
  if (!pre.empty() && pre != "gemma4")
    return Error{file.path(), fmt::format("tokenizer.ggml.pre: expected gemma4 or no such key, found {}", pre),
                 kConvertHint};

  Result<std::vector<std::string>> tokens = strings(file, "tokenizer.ggml.tokens");
  if (!tokens) return tokens.error();
  Result<std::vector<std::string>> merges = strings(file, "tokenizer.ggml.merges");
  if (!merges) return merges.error();
  v.tokens = std::move(*tokens);
  v.merges = std::move(*merges);
  if (v.tokens.empty() || v.tokens.size() > size_t(INT32_MAX))
    return Error{file.path(),
                 fmt::format("tokenizer.ggml.tokens: expected 1..2^31-1 entries, found {}", v.tokens.size()),
                 kConvertHint};

  // A scalar would be repeated for every token; a vocabulary of one type is not a Gemma vocabulary.
  Result<std::vector<int64_t>> types = file.get_ints("tokenizer.ggml.token_type", 0);
  if (!types) return types.error();
  if (types->size() != v.tokens.size())
    return Error{file.path(),
                 fmt::format("tokenizer.ggml.token_type: expected {} entries as in tokenizer.ggml.tokens, found {}",
                             v.tokens.size(), types->size()),
                 kConvertHint};
  v.types.reserve(types->size());
  for (size_t i = 0; i < types->size(); ++i) {
    const int64_t t = (*types)[i];
    if (t < kNormal || t > kByte)
      return Error{file.path(), fmt::format("tokenizer.ggml.token_type[{}]: expected 1..6, found {}", i, t),
                   kConvertHint};
    v.types.push_back(int(t));
  }

  Result<std::vector<int32_t>> suppress = optional_ids(file, "tokenizer.ggml.suppress_tokens", v.tokens.size());
  if (!suppress) return suppress.error();
  v.suppress = std::move(*suppress);
  Result<std::vector<int32_t>> eos_ids = optional_ids(file, "tokenizer.ggml.eos_token_ids", v.tokens.size());
  if (!eos_ids) return eos_ids.error();
  v.eos_ids = std::move(*eos_ids);
  Result<std::vector<int32_t>> eos = optional_ids(file, "tokenizer.ggml.eos_token_id", v.tokens.size());
  if (!eos) return eos.error();
  v.eos_ids.insert(v.eos_ids.end(), eos->begin(), eos->end());

  if (file.find_meta("tokenizer.chat_template")) {
    Result<std::string> source = file.get_string("tokenizer.chat_template");
    if (!source) return source.error();
    v.chat_template = std::move(*source);
    if (v.chat_template.find("<|turn>") == std::string::npos)
      v.notes.push_back(
          "tokenizer.chat_template has no <|turn>, so it is not Gemma 4's; prompts are written in Gemma 4's format all "
          "the same, and a model trained on another format may answer badly");
  }
  bool add_bos = false;
  if (file.find_meta("tokenizer.ggml.add_bos_token")) {
    Result<bool> b = file.get_bool("tokenizer.ggml.add_bos_token");
    if (!b) return b.error();
    add_bos = *b;
  }
  // Early exports carry false or nothing here, and the model degenerates without <bos>.
  if (!add_bos) v.notes.push_back("tokenizer.ggml.add_bos_token is not true; <bos> is added all the same");
  return v;
}

}  // namespace facet
