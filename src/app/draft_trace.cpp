// --spec-trace: what every draft came to, as lines of JSON.
#include <fmt/format.h>

#include <memory>
#include <utility>

#include "app/options.h"
#include "base/files.h"
#include "base/print.h"
#include "tokenizer/json.h"

namespace facet {
namespace {

// Complete when the engine that fills it is gone.
class Trace {
 public:
  explicit Trace(OutputFile file) : file_(std::move(file)) {}
  Trace(const Trace&) = delete;
  ~Trace() {
    if (const Status done = file_.finish(); !done) print_err("facet: {}\n", done.error().message());
  }
  void add(const DraftRound& r) {
    Json line = {{"request", r.request},   {"position", r.position},      {"method", r.method},
                 {"newest", r.token[0]},   {"draft", r.token.subspan(1)}, {"drawn", r.drawn},
                 {"accepted", r.accepted}, {"draft_ms", r.draft_s * 1e3}, {"verify_ms", r.verify_s * 1e3}};
    if (!r.parent.empty()) line["parent"] = r.parent;
    if (ok_) ok_ = bool(file_.write(dump_json(line) + "\n"));  // finish() tells
  }

 private:
  OutputFile file_;
  bool ok_ = true;
};

}  // namespace

Result<std::function<void(const DraftRound&)>> trace_drafts(const std::string& path,
                                                            const std::vector<std::string>& not_these) {
  auto file = OutputFile::create(path, not_these);
  if (!file) return file.error();
  const auto trace = std::make_shared<Trace>(std::move(*file));
  return std::function<void(const DraftRound&)>([trace](const DraftRound& r) { trace->add(r); });
}

}  // namespace facet
