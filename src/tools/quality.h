#pragma once
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "api/engine.h"
#include "base/result.h"
#include "tokenizer/json_fwd.h"
#include "tools/eval.h"

// What a K/V type costs in answers and distributions, as a report that is kept beside the model.
namespace facet {

// How far next-token distributions are from those of the first type; nats, KL(first || this).
struct KlTail {
  double mean = 0, p50 = 0, p99 = 0, max = 0;
  double same_top = 0;  // share of places with the same likeliest token
};
struct KvQuality {
  KvPair kv;
  std::vector<EvalScore> scores;  // by kind of question
  double perplexity = 0;
  KlTail kl;
};
struct QualityReport {
  std::string model = {}, fingerprint = {}, version = {}, backend = {};
  int longest = 0;                    // tokens of the longest question
  int64_t places = 0;                 // of texts, whose distributions were compared
  std::vector<KvQuality> types = {};  // the first is what the others are compared with

  // Right answers of kinds that begin so, as a share; negative: there is no such question.
  static double share(const KvQuality& q, std::string_view kind);
};

struct QualityOptions {
  std::vector<KvPair> types;
  std::vector<EvalDoc> questions;
  std::string text;       // for perplexity and divergence; tokens that look special are read as such
  int window = 512;       // tokens; its second half is measured
  int64_t places = 1024;  // at most, spread over the text: each is a row of the vocabulary in memory
};
// An engine of a type, with room for the longest question: it is closed before the next is opened.
using OpenForKv = std::function<Result<std::unique_ptr<Engine>>(const KvPair&)>;
// Fills types, longest and places. progress(type, done, of).
Result<QualityReport> measure_quality(const QualityOptions& o, const OpenForKv& open,
                                      const std::function<void(const KvPair&, int, int)>& progress);

Json to_json(const QualityReport& r);
// Of a file that anybody may have written.
Result<QualityReport> quality_from_json(const Json& j, const std::string& where);
Status write_quality(const QualityReport& r, const std::string& path);
Result<QualityReport> read_quality(const std::string& path);
std::string to_markdown(const QualityReport& r);

// What a plan says of a type: a line that begins with "quality" or "note". path: of the report.
std::string quality_line(const QualityReport& r, const std::string& path, const std::string& fingerprint,
                         const KvPair& kv, int n_ctx);

// A type is taken unasked (--kv auto) if it loses at most one right answer in a hundred, of all questions, of needles
// and of those of two steps, if its perplexity is at most 1 % higher than the first type's, and if 99 of 100 of its
// distributions are at most so many nats from the first's.
constexpr double kMostLost = .01, kMostPerplexity = .01, kMostKl = .1;
std::string too_lossy(const QualityReport& r, const KvQuality& q);  // why it is not; empty: it is
// The types of a report that are taken unasked, the most bytes first, and in kv_reason what is left out. An empty list
// and the reason where the report is of another file.
void choose_by_quality(const QualityReport& r, const std::string& path, const std::string& fingerprint,
                       EngineConfig& c);

}  // namespace facet
