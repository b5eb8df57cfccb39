#include "tools/eval.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <sstream>

#include "base/files.h"
#include "model/types.h"
#include "tokenizer/json.h"
#include "tokenizer/tokenizer.h"

namespace facet {
namespace {

int top(std::span<const float> row) { return int(std::max_element(row.begin(), row.end()) - row.begin()); }

// log of the sum of exponentials.
double log_total(std::span<const float> row) {
  const double m = *std::max_element(row.begin(), row.end());
  double sum = 0;
  for (float x : row) sum += std::exp(double(x) - m);
  return m + std::log(sum);
}

// Calls f(first row of ids, row, target) for every row whose next token is known, in the second half of each window.
template <class F>
Status for_windows(Engine& e, std::span<const int32_t> ids, int window, F&& f) {
  std::vector<int32_t> piece;
  for (size_t at = 0; at + size_t(window) - 1 <= ids.size(); at += size_t(window) - 1) {
    piece.assign(1, e.tokenizer() ? e.tokenizer()->bos() : ids[at]);
    piece.insert(piece.end(), ids.begin() + ptrdiff_t(at), ids.begin() + ptrdiff_t(at) + window - 1);
    const size_t V = size_t(e.model().n_vocab);
    auto ok = e.score(piece, window / 2, [&](int first, std::span<const float> rows) {
      for (size_t r = 0; r * V < rows.size(); ++r)
        if (size_t(first) + r + 1 < piece.size()) f(rows.subspan(r * V, V), piece[size_t(first) + r + 1]);
    });
    if (!ok) return ok;
  }
  return Ok{};
}

}  // namespace

Result<std::vector<EvalDoc>> read_eval_set(const std::string& path) {
  constexpr uint64_t kMost = uint64_t(256) << 20;
  auto text = read_file(path, kMost);
  if (!text) return text.error();
  std::istringstream f(std::move(*text));
  std::vector<EvalDoc> docs;
  int n = 0;
  for (std::string line; std::getline(f, line);) {
    ++n;
    if (line.empty()) continue;
    const std::string where = fmt::format("{}:{}", path, n);
    auto j = parse_json(line, where);
    if (!j) return j.error();
    EvalDoc d;
    for (const auto& [key, to] : {std::pair{"kind", &d.kind}, {"context", &d.context}, {"answer", &d.answer}}) {
      if (!j->is_object() || !j->contains(key) || !(*j)[key].is_string())
        return Error{where, fmt::format("{}: expected a string, found none", key),
                     "each line is {kind, length, context, answer}"};
      *to = (*j)[key].get<std::string>();
    }
    if (j->contains("length") && (*j)["length"].is_number_integer() && (*j)["length"].get<int64_t>() > 0)
      d.kind += fmt::format("-{}", (*j)["length"].get<int64_t>());
    docs.push_back(std::move(d));
  }
  return docs;
}

Result<std::vector<EvalScore>> grade(Engine& e, const std::vector<EvalDoc>& docs,
                                     const std::function<void(int, int)>& progress) {
  const Tokenizer* t = e.tokenizer();
  if (!t)
    return Error{e.config().model, "tokenizer.ggml.model: expected a vocabulary, found no_vocab", "grading needs text"};
  std::vector<EvalScore> scores;
  std::map<std::string, std::map<std::string, int>> answers;
  for (size_t i = 0; i < docs.size(); ++i) {
    const EvalDoc& d = docs[i];
    std::vector<int32_t> ids = t->encode(d.context, true, true);
    const size_t from = ids.size();
    const auto answer = t->encode(d.answer, false, true);
    ids.insert(ids.end(), answer.begin(), answer.end());
    const size_t V = size_t(e.model().n_vocab);
    bool right = true;
    ids.pop_back();  // nothing follows the last token
    auto ok = e.score(ids, int(from) - 1, [&](int first, std::span<const float> rows) {
      for (size_t r = 0; r * V < rows.size(); ++r)
        right &= top(rows.subspan(r * V, V)) == answer[size_t(first) + r + 1 - from];
    });
    if (!ok) return ok.error();
    auto at = std::find_if(scores.begin(), scores.end(), [&](const EvalScore& s) { return s.kind == d.kind; });
    if (at == scores.end()) at = scores.insert(at, {.kind = d.kind});
    ++at->of;
    at->right += right;
    at->majority = std::max(at->majority, ++answers[d.kind][d.answer]);
    if (progress) progress(int(i + 1), int(docs.size()));
  }
  return scores;
}

double Perplexity::value() const { return tokens > 0 ? std::exp(nll / double(tokens)) : 0; }

Result<Perplexity> perplexity(Engine& e, std::span<const int32_t> ids, int window) {
  Perplexity p;
  auto ok = for_windows(e, ids, window, [&](std::span<const float> row, int32_t target) {
    p.nll += log_total(row) - double(row[size_t(target)]);
    ++p.tokens;
  });
  if (!ok) return ok.error();
  if (p.tokens == 0)
    return Error{"text", fmt::format("expected at least {} tokens, found {}", window - 1, ids.size()),
                 "give a longer text or a smaller --window"};
  return p;
}

Result<Divergence> divergence(Engine& reference, Engine& e, std::span<const int32_t> ids, int window) {
  Divergence d;
  std::vector<double> kl;
  const size_t step = size_t(window) - 1;
  for (size_t at = 0; at + step <= ids.size(); at += step) {  // one window of both at a time: logits are large
    std::vector<float> want;
    auto ok = for_windows(reference, ids.subspan(at, step), window, [&](std::span<const float> row, int32_t) {
      want.insert(want.end(), row.begin(), row.end());
    });
    if (!ok) return ok.error();
    size_t r = 0;
    ok = for_windows(e, ids.subspan(at, step), window, [&](std::span<const float> got, int32_t) {
      const auto ref = std::span(want).subspan(r++ * got.size(), got.size());
      const double a = log_total(ref), b = log_total(got);
      double sum = 0;
      for (size_t i = 0; i < got.size(); ++i)
        sum += std::exp(double(ref[i]) - a) * ((double(ref[i]) - a) - (double(got[i]) - b));
      kl.push_back(std::max(0.0, sum));
      d.same_top += top(ref) == top(got);
    });
    if (!ok) return ok.error();
  }
  if (kl.empty())
    return Error{"text", fmt::format("expected at least {} tokens, found {}", step, ids.size()),
                 "give a longer text or a smaller --window"};
  d.tokens = int64_t(kl.size());
  for (double x : kl) d.mean_kl += x / double(kl.size());
  std::sort(kl.begin(), kl.end());
  d.p99_kl = kl[size_t(double(kl.size() - 1) * .99)];
  d.max_kl = kl.back();
  return d;
}

}  // namespace facet
