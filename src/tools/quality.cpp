#include "tools/quality.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/files.h"
#include "base/print.h"
#include "model/types.h"
#include "tokenizer/json.h"
#include "tokenizer/tokenizer.h"
#include "tools/statistics.h"

namespace facet {
namespace {

constexpr const char* kFormat = "facet-quality-1";
constexpr uint64_t kMaxReport = uint64_t(1) << 20;

// Natural logarithms of a softmax.
void to_log_probs(std::span<const float> logits, std::vector<float>& out) {
  const double most = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float x : logits) sum += std::exp(double(x) - most);
  const double total = most + std::log(sum);
  for (const float x : logits) out.push_back(float(double(x) - total));
}
size_t top(std::span<const float> row) { return size_t(std::max_element(row.begin(), row.end()) - row.begin()); }

// Windows of the text that are measured, spread evenly: as many as there are places for.
std::vector<std::vector<int32_t>> windows_of(std::span<const int32_t> ids, int32_t bos, const QualityOptions& o) {
  const int64_t step = o.window - 1, all = int64_t(ids.size()) / step, each = o.window - 1 - o.window / 2;
  const int64_t n = std::min(all, std::max<int64_t>(1, o.places / each));
  std::vector<std::vector<int32_t>> windows;
  for (int64_t i = 0; i < n; ++i) {
    const auto at = ids.begin() + ptrdiff_t(i * all / n * step);
    windows.emplace_back(1, bos).insert(windows.back().end(), at, at + ptrdiff_t(step));
  }
  return windows;
}

// Of all places, log-probabilities, and of each the logarithm of what came.
struct Distributions {
  std::vector<float> rows;
  double nll = 0;
  int64_t places = 0;
};
Status score_windows(Engine& e, const std::vector<std::vector<int32_t>>& windows, int window,
                     const std::function<Status(std::span<const float> log_probs, int32_t came)>& f) {
  const size_t V = size_t(e.model().n_vocab);
  std::vector<float> row;
  for (const std::vector<int32_t>& w : windows) {
    Status inner = Ok{};
    auto ok = e.score(w, window / 2, [&](int first, std::span<const float> rows) {
      for (size_t r = 0; r * V < rows.size() && inner; ++r) {
        if (size_t(first) + r + 1 >= w.size()) break;
        row.clear();
        to_log_probs(rows.subspan(r * V, V), row);
        inner = f(row, w[size_t(first) + r + 1]);
      }
    });
    if (!ok) return ok;
    if (!inner) return inner;
  }
  return Ok{};
}

KlTail tail_of(std::vector<double> kl, int64_t same) {
  KlTail t{.mean = mean_of(kl), .same_top = double(same) / double(std::max<size_t>(1, kl.size()))};
  t.p50 = percentile(kl, .5), t.p99 = percentile(kl, .99), t.max = percentile(kl, 1);
  return t;
}

// A type's distributions against the first one's, which it leaves in `first`.
Status measure_text(Engine& e, const std::vector<std::vector<int32_t>>& windows, int window, Distributions& first,
                    KvQuality& q) {
  const bool is_first = first.places == 0;
  const size_t V = size_t(e.model().n_vocab);
  std::vector<double> kl;
  double nll = 0;
  int64_t same = 0;
  size_t at = 0;
  auto ok = score_windows(e, windows, window, [&](std::span<const float> got, int32_t came) {
    nll -= double(got[size_t(came)]);
    if (is_first) {
      first.rows.insert(first.rows.end(), got.begin(), got.end());
      kl.push_back(0), ++same;
      return Status(Ok{});
    }
    const auto want = std::span(first.rows).subspan(at++ * V, V);
    double sum = 0;
    for (size_t i = 0; i < V; ++i) sum += std::exp(double(want[i])) * (double(want[i]) - double(got[i]));
    if (!std::isfinite(sum)) return Status(Error{"logits", "expected finite ones", "the model or a kernel is broken"});
    kl.push_back(std::max(0., sum));
    same += top(want) == top(got);
    return Status(Ok{});
  });
  if (!ok) return ok;
  if (is_first) first.places = int64_t(kl.size());
  q.perplexity = kl.empty() ? 0 : std::exp(nll / double(kl.size()));
  q.kl = tail_of(std::move(kl), same);
  return Ok{};
}

Json to_json(const KvQuality& q) {
  Json kinds = Json::array();
  for (const EvalScore& s : q.scores)
    kinds.push_back({{"kind", s.kind}, {"right", s.right}, {"of", s.of}, {"majority", s.majority}});
  return {{"k", kv_type_name(q.kv.k)},
          {"v", kv_type_name(q.kv.v)},
          {"questions", std::move(kinds)},
          {"perplexity", q.perplexity},
          {"kl", {{"mean", q.kl.mean}, {"p50", q.kl.p50}, {"p99", q.kl.p99}, {"max", q.kl.max}}},
          {"same_top", q.kl.same_top}};
}

// Reads fields; the first that is wrong is told.
class Reader {
 public:
  explicit Reader(const std::string& where) : where_(where) {}
  const Json& at(const Json& j, const char* key) {
    static const Json none;
    if (j.is_object() && j.contains(key)) return j[key];
    return fail(key, "nothing"), none;
  }
  std::string text(const Json& j, const char* key) {
    const Json& v = at(j, key);
    if (v.is_string() && v.get_ref<const std::string&>().size() <= 4096) return on_one_line(v.get<std::string>());
    return fail(key, "no short text"), "";
  }
  double number(const Json& j, const char* key, double most) {
    const Json& v = at(j, key);
    if (v.is_number() && v.get<double>() >= 0 && v.get<double>() <= most) return v.get<double>();
    return fail(key, "no number in its range"), 0;
  }
  const Json& list(const Json& j, const char* key) {
    static const Json none = Json::array();
    const Json& v = at(j, key);
    if (v.is_array() && v.size() <= 1024) return v;
    return fail(key, "no list"), none;
  }
  void fail(const char* key, const char* found) {
    if (!error_.what.empty()) return;
    error_ = {where_, fmt::format("{}: expected what facet quality writes, found {}", key, found), "measure it again"};
  }
  bool ok() const { return error_.what.empty(); }
  const Error& error() const { return error_; }

 private:
  std::string where_;
  Error error_{"", "", ""};
};

KvQuality type_from_json(Reader& r, const Json& j) {
  KvQuality q;
  const auto k = kv_type_from_name(r.text(j, "k")), v = kv_type_from_name(r.text(j, "v"));
  if (k && v)
    q.kv = {*k, *v};
  else
    r.fail("k, v", "no K/V type");
  for (const Json& s : r.list(j, "questions")) {
    EvalScore& e = q.scores.emplace_back();
    e.kind = r.text(s, "kind");
    e.of = int(r.number(s, "of", 1e9)), e.right = int(r.number(s, "right", e.of));
    e.majority = int(r.number(s, "majority", e.of));
  }
  q.perplexity = r.number(j, "perplexity", 1e30);
  const Json& kl = r.at(j, "kl");
  q.kl = {r.number(kl, "mean", 1e6), r.number(kl, "p50", 1e6), r.number(kl, "p99", 1e6), r.number(kl, "max", 1e6),
          r.number(j, "same_top", 1)};
  return q;
}

std::string percent(double share) { return share < 0 ? "-" : fmt::format("{:.1f} %", 100 * share); }

}  // namespace

double QualityReport::share(const KvQuality& q, std::string_view kind) {
  int right = 0, of = 0;
  for (const EvalScore& s : q.scores)
    if (s.kind.starts_with(kind)) right += s.right, of += s.of;
  return of > 0 ? double(right) / of : -1;
}

Result<QualityReport> measure_quality(const QualityOptions& o, const OpenForKv& open,
                                      const std::function<void(const KvPair&, int, int)>& progress) {
  QualityReport r;
  Distributions first;
  for (const KvPair& kv : o.types) {
    auto e = open(kv);
    if (!e) return e.error();
    const Tokenizer* t = (*e)->tokenizer();
    if (!t)
      return Error{(*e)->config().model, "tokenizer.ggml.model: expected a vocabulary, found no_vocab",
                   "give another model"};
    KvQuality& q = r.types.emplace_back();
    q.kv = kv;
    auto scores = grade(**e, o.questions, [&](int n, int of) { progress(kv, n, of); });
    if (!scores) return scores.error();
    q.scores = std::move(*scores);
    const auto windows = windows_of(t->encode(o.text, false, true), t->bos(), o);
    if (windows.empty())
      return Error{"text", fmt::format("expected at least {} tokens, found fewer", o.window - 1), "give a longer one"};
    if (auto ok = measure_text(**e, windows, o.window, first, q); !ok) return ok.error();
    for (const EvalDoc& d : o.questions)
      if (&kv == &o.types.front()) r.longest = std::max(r.longest, int(t->encode(d.context, true, true).size()));
  }
  r.places = first.places;
  return r;
}

Json to_json(const QualityReport& r) {
  Json types = Json::array();
  for (const KvQuality& q : r.types) types.push_back(to_json(q));
  return {{"format", kFormat},    {"model", r.model},         {"fingerprint", r.fingerprint},
          {"version", r.version}, {"backend", r.backend},     {"longest_question", r.longest},
          {"places", r.places},   {"types", std::move(types)}};
}

Result<QualityReport> quality_from_json(const Json& j, const std::string& where) {
  Reader r(where);
  QualityReport q;
  if (r.text(j, "format") != kFormat) r.fail("format", "another");
  q.model = r.text(j, "model"), q.fingerprint = r.text(j, "fingerprint");
  q.version = r.text(j, "version"), q.backend = r.text(j, "backend");
  q.longest = int(r.number(j, "longest_question", 1e9)), q.places = int64_t(r.number(j, "places", 1e12));
  for (const Json& t : r.list(j, "types")) q.types.push_back(type_from_json(r, t));
  if (q.types.empty()) r.fail("types", "none");
  if (!r.ok()) return r.error();
  return q;
}

Status write_quality(const QualityReport& r, const std::string& path) {
  auto file = OutputFile::create(path);
  if (!file) return file.error();
  if (auto ok = file->write(to_json(r).dump(1) + "\n"); !ok) return ok;
  return file->finish();
}

Result<QualityReport> read_quality(const std::string& path) {
  auto text = read_file(path, kMaxReport);
  if (!text) return text.error();
  auto j = parse_json(*text, path);
  if (!j) return j.error();
  return quality_from_json(*j, path);
}

std::string to_markdown(const QualityReport& r) {
  std::string s = fmt::format("{}: questions of at most {} tokens, {} places of text, {} backend, facet {}\n\n",
                              r.model, r.longest, r.places, r.backend, r.version);
  std::string head = "| K/V |", line = "| --- |";
  for (const EvalScore& k : r.types.front().scores) head += fmt::format(" {} |", k.kind), line += " ---: |";
  s += head +
       fmt::format(" perplexity | KL against {}: median | p99 | longest | same top |\n", r.types.front().kv.name());
  s += line + " ---: | ---: | ---: | ---: | ---: |\n";
  for (const KvQuality& q : r.types) {
    s += fmt::format("| {} |", q.kv.name());
    for (const EvalScore& k : q.scores) s += fmt::format(" {}/{} |", k.right, k.of);
    s += fmt::format(" {:.4f} | {:.3g} | {:.3g} | {:.3g} | {} |\n", q.perplexity, q.kl.p50, q.kl.p99, q.kl.max,
                     percent(q.kl.same_top));
  }
  return s;
}

namespace {

constexpr std::pair<const char*, const char*> kKinds[] = {{"retrieval", "needles"}, {"thinking", "two-step questions"}};

double more_perplexity(const QualityReport& r, const KvQuality& q) {
  return r.types.front().perplexity > 0 ? q.perplexity / r.types.front().perplexity - 1 : 0;
}

std::string figures(const QualityReport& r, const KvQuality& q) {
  std::string s;
  for (const auto& [kind, what] : kKinds)
    if (const double share = QualityReport::share(q, kind); share >= 0)
      s += fmt::format("{} of {}, ", percent(share), what);
  return s + fmt::format("perplexity {:+.2f} % and KL p99 {:.2g} nats against {}", 100 * more_perplexity(r, q),
                         q.kl.p99, r.types.front().kv.name());
}

size_t bytes_of(const KvPair& kv) { return kv_row_bytes(kv.k, 256) + kv_row_bytes(kv.v, 256); }

}  // namespace

std::string too_lossy(const QualityReport& r, const KvQuality& q) {
  const KvQuality& first = r.types.front();
  for (const auto& [kind, what] : {kKinds[0], kKinds[1], std::pair{"", "questions"}}) {
    const double share = QualityReport::share(q, kind), whole = QualityReport::share(first, kind);
    if (share < whole - kMostLost) return fmt::format("{} of {} against {}", percent(share), what, percent(whole));
  }
  if (const double more = more_perplexity(r, q); more > kMostPerplexity)
    return fmt::format("perplexity {:+.2f} %", 100 * more);
  if (q.kl.p99 > kMostKl) return fmt::format("KL p99 {:.2g} nats", q.kl.p99);
  return {};
}

void choose_by_quality(const QualityReport& r, const std::string& path, const std::string& fingerprint,
                       EngineConfig& c) {
  if (r.fingerprint != fingerprint) {
    c.kv_reason =
        fmt::format("--kv auto: {} is of another model file, so the usual type; facet quality measures this one", path);
    return;
  }
  std::vector<const KvQuality*> types;
  for (const KvQuality& q : r.types) types.push_back(&q);
  std::stable_sort(types.begin(), types.end(),
                   [](const auto* a, const auto* b) { return bytes_of(a->kv) > bytes_of(b->kv); });
  std::string left_out;
  for (const KvQuality* q : types) {
    if (const std::string why = too_lossy(r, *q); !why.empty())
      left_out += fmt::format("{}{} ({})", left_out.empty() ? "" : ", ", q->kv.name(), why);
    else
      c.kv_choices.push_back({q->kv, figures(r, *q)});
  }
  c.kv_reason = left_out.empty() ? path : fmt::format("left out: {} ({})", left_out, path);
}

std::string quality_line(const QualityReport& r, const std::string& path, const std::string& fingerprint,
                         const KvPair& kv, int n_ctx) {
  if (r.fingerprint != fingerprint)
    return fmt::format("note: {} is of another model file; facet quality measures this one", path);
  const auto q = std::find_if(r.types.begin(), r.types.end(), [&](const KvQuality& t) { return t.kv == kv; });
  if (q == r.types.end()) return fmt::format("note: {} has nothing of {}", path, kv.name());
  std::string s = fmt::format("quality of {}: {} ({})", kv.name(), figures(r, *q), path);
  if (n_ctx > r.longest) s += fmt::format("; nothing beyond {} tokens was measured", r.longest);
  return s;
}

}  // namespace facet
