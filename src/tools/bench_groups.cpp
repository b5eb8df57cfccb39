#include <fmt/format.h>

#include <algorithm>

#include "compose/plan.h"
#include "tools/bench.h"

namespace facet {
namespace {

int largest(const std::vector<int>& v, int least) { return v.empty() ? least : *std::max_element(v.begin(), v.end()); }

// `c` as a group with these options needs it.
EngineConfig sized(EngineConfig c, const BenchOptions& o) {
  const int widest = largest(o.widths, 1), batch = largest(o.batches, 1), deepest = largest(o.depths, 0);
  if (!o.alone) {
    c.chunk = std::max(64, batch);
    if (c.n_ctx <= 0) c.n_ctx = deepest + std::max(64, 2 * o.runs);
  } else if (c.chunk <= 0) {
    const int prompt = largest(o.prefill, 0);
    c.chunk = std::clamp(prompt, 512, std::max(512, usual_chunk(c.backend, prompt)));
  }
  c.chunk = std::max(c.chunk, widest);
  c.max_seq = batch, c.max_out = std::max(widest, batch);
  c.margin = std::max(c.margin, widest);
  c.snapshots = 0;
  if (c.n_ctx <= 0) c.n_ctx = deepest + std::max(c.chunk, largest(o.prefill, 0));
  return c;
}

}  // namespace

Result<std::vector<BenchGroup>> bench_groups(const EngineConfig& c, const BenchOptions& o,
                                             const std::function<Result<EngineConfig>(const EngineConfig&)>& fits) {
  if (const int rows = largest(o.depths, 0) + std::max(largest(o.prefill, 0), largest(o.widths, 1));
      c.n_ctx > 0 && rows > c.n_ctx)
    return Error{
        "-c", fmt::format("expected at least {} rows, for --depths, --prefill and --widths, found {}", rows, c.n_ctx),
        "leave it out: it is chosen to fit"};
  std::vector<int> left = o.batches;
  std::sort(left.begin(), left.end());
  left.erase(std::unique(left.begin(), left.end()), left.end());
  // The most of the batches that are left, with `options` otherwise; false: not one (or, alone, nothing at all).
  std::vector<BenchGroup> groups;
  std::optional<Error> why;
  auto take = [&](BenchOptions options, const EngineConfig& with) {
    for (size_t n = left.size() + 1; n-- > (options.alone ? 0 : 1);) {
      options.batches.assign(left.begin(), left.begin() + ptrdiff_t(n));
      auto decided = fits(sized(with, options));
      if (decided) {
        groups.push_back({std::move(*decided), options});
        left.erase(left.begin(), left.begin() + ptrdiff_t(n));
        return true;
      }
      why = decided.error();
    }
    return false;
  };
  if (!take(o, c)) return *why;
  BenchOptions only = o;
  only.alone = false, only.prefill.clear(), only.widths.clear();
  const bool chosen = c.kv_k || c.kv_v || !c.kv_layers.empty();
  for (size_t type = 0; !left.empty() && type < 3;) {
    constexpr KvType kTypes[] = {KvType::kF16, KvType::kQ8_0, KvType::kQ4_0};
    EngineConfig with = c;
    if (!chosen) with.kv_k = with.kv_v = kTypes[type];
    if (!take(only, with)) type = chosen ? 3 : type + 1;
  }
  if (!left.empty()) return *why;
  return groups;
}

}  // namespace facet
