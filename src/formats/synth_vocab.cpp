// A vocabulary for a synthetic model: another model's, filled up.
#include <fmt/format.h>

#include <algorithm>
#include <unordered_set>

#include "formats/synth.h"

namespace facet {
namespace {

constexpr std::string_view kTokens = "tokenizer.ggml.tokens", kTypes = "tokenizer.ggml.token_type",
                           kScores = "tokenizer.ggml.scores";
constexpr int64_t kNormal = 1;            // of token_type
constexpr double kFillerScore = -1000.0;  // as of tokens that merging does not make

// As the plan keeps it: a copy.
SynthMeta owned(const std::string& key, const GgufValue& value) {
  SynthMeta m{key, {}};
  std::visit(
      [&](const auto& v) {
        using T = std::decay_t<decltype(v)>;
        if constexpr (std::is_same_v<T, std::string_view>)
          m.v = std::string(v);
        else if constexpr (std::is_same_v<T, std::vector<std::string_view>>)
          m.v = std::vector<std::string>(v.begin(), v.end());
        else
          m.v = v;
      },
      value.v);
  return m;
}

// The array `key` of plan that was copied, of n elements.
template <class T>
Result<std::vector<T>*> array_of(SynthPlan& plan, const GgufFile& from, std::string_view key, size_t n) {
  for (SynthMeta& m : plan.meta)
    if (m.key == key)
      if (auto* v = std::get_if<std::vector<T>>(&m.v); v && (n == 0 || v->size() == n)) return v;
  return Error{from.path(),
               n == 0 ? fmt::format("{}: expected a list of tokens", key)
                      : fmt::format("{}: expected {} entries, as many as there are tokens", key, n),
               "take another model's vocabulary"};
}

}  // namespace

Status synth_add_vocab(SynthPlan& plan, const GgufFile& from) {
  const auto embedding = std::find_if(plan.tensors.begin(), plan.tensors.end(),
                                      [](const SynthTensor& t) { return t.name == "token_embd.weight"; });
  const auto* arch = plan.meta.empty() ? nullptr : std::get_if<std::string>(&plan.meta.front().v);
  if (embedding == plan.tensors.end() || !arch || *arch != "gemma4")
    return Error{"--vocab", "expected a model's preset, found a drafter's",
                 "a drafter has the vocabulary of its model"};
  const size_t n_vocab = size_t(embedding->ne[1]);

  std::erase_if(plan.meta, [](const SynthMeta& m) {
    return m.key.starts_with("tokenizer.") || m.key == "gemma4.vocab_size";  // told by the tokens
  });
  for (const auto& [key, value] : from.meta())
    if (key.starts_with("tokenizer.")) plan.meta.push_back(owned(key, value));
  auto tokens = array_of<std::string>(plan, from, kTokens, 0);
  if (!tokens) return tokens.error();
  std::vector<std::string>& text = **tokens;
  const size_t n_own = text.size();
  if (n_own > n_vocab)
    return Error{from.path(), fmt::format("{}: expected at most {} entries, found {}", kTokens, n_vocab, n_own),
                 "take a model with a smaller vocabulary"};
  auto types = array_of<int64_t>(plan, from, kTypes, n_own);
  if (!types) return types.error();
  (*types)->resize(n_vocab, kNormal);
  if (from.find_meta(kScores)) {
    auto scores = array_of<double>(plan, from, kScores, n_own);
    if (!scores) return scores.error();
    (*scores)->resize(n_vocab, kFillerScore);
  }
  const std::unordered_set<std::string> known(text.begin(), text.end());
  for (int64_t i = 0; text.size() < n_vocab; ++i)
    if (std::string filler = fmt::format("<unused{}>", i); !known.contains(filler)) text.push_back(std::move(filler));
  return Ok{};
}

}  // namespace facet
