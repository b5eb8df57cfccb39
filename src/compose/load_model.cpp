#include "compose/load_model.h"

#include <fmt/format.h>

#include <utility>

#include "model/gemma4_config.h"

namespace facet {

Result<std::string> drafter_kind_of(const std::string& path) {
  auto f = DrafterFile::open(path);
  if (!f) return f.error();
  return std::string(drafter_kind_name(f->kind()));
}

Result<LoadedModel> load_model(const std::string& path) {
  auto file = open_gemma4(path);
  if (!file) return file.error();
  LoadedModel model;
  model.file = std::move(*file);
  auto cfg = gemma4_config(model.file);
  if (!cfg) return cfg.error();
  model.cfg = std::move(*cfg);
  auto vocab = vocab_from_gguf(model.file);
  if (!vocab) return vocab.error();
  if (vocab->empty()) return model;
  if (int(vocab->tokens.size()) != model.cfg.n_vocab)
    return Error{path,
                 fmt::format("tokenizer.ggml.tokens: expected {} tokens, the rows of token_embd.weight, found {}",
                             model.cfg.n_vocab, vocab->tokens.size()),
                 "convert the model again"};
  auto tokenizer = Tokenizer::create(std::move(*vocab));
  if (!tokenizer) return tokenizer.error();
  model.tokenizer.emplace(std::move(*tokenizer));
  return model;
}

}  // namespace facet
