#include "backend/shard_spec.h"

#include <algorithm>

#include "base/check.h"

namespace facet {

ShardRanges shard_ranges(int64_t n, const ShardSpec& spec, int n_shard) {
  const int64_t units = (n + spec.unit - 1) / spec.unit;
  ShardRanges r(size_t(n_shard), {0, n});
  if (spec.side == ShardSpec::Side::kWhole) return r;
  for (int64_t i = 0; i < n_shard; ++i) {
    int64_t first = i * units / n_shard, end = (i + 1) * units / n_shard;
    if (spec.repeat && units < n_shard) end = first + 1;
    r[size_t(i)] = {std::min(n, first * spec.unit), std::min(n, end * spec.unit)};
  }
  return r;
}

bool ranges_hold_whole_blocks(const ShardRanges& r, DType type) {
  const int64_t block = dtype_info(type).block;
  return std::all_of(r.begin(), r.end(), [&](const Range& x) { return x.begin % block == 0 && x.end % block == 0; });
}

ShardedTensor shard_tensor(const TensorView& t, const ShardSpec& spec, Range range) {
  ShardedTensor c{t, {}};
  if (spec.side == ShardSpec::Side::kWhole) return c;
  const bool in = spec.side == ShardSpec::Side::kIn;
  const int64_t folds = in ? 1 : spec.folds, n_out = t.ne[1] / folds, stacked = t.ne[2] * t.ne[3] * folds;
  CHECK(t.ne[1] % folds == 0 && range.begin >= 0 && range.end <= (in ? t.ne[0] : n_out), "{}: columns {}..{} of {}",
        t.name, range.begin, range.end, shape_string(t));
  const size_t row = row_bytes(t.type, t.ne[0]);
  c.view.ne[in ? 0 : 1] = range.size() * folds;
  if (!in && stacked == 1) {
    c.view.data = t.data.subspan(size_t(range.begin) * row, size_t(range.size()) * row);
    return c;
  }
  c.bytes.reserve(size_t(c.view.ne[1] * t.ne[2] * t.ne[3]) * row_bytes(t.type, c.view.ne[0]));
  const auto add = [&](size_t at, size_t n) {
    const auto piece = t.data.subspan(at, n);
    c.bytes.insert(c.bytes.end(), piece.begin(), piece.end());
  };
  for (int64_t s = 0; s < stacked; ++s) {
    const size_t base = size_t(s * n_out) * row;
    if (!in) {
      add(base + size_t(range.begin) * row, size_t(range.size()) * row);
      continue;
    }
    const size_t from = row_bytes(t.type, range.begin), n = row_bytes(t.type, range.size());
    for (int64_t o = 0; o < n_out; ++o) add(base + size_t(o) * row + from, n);
  }
  c.view.data = c.bytes;
  return c;
}

}  // namespace facet
