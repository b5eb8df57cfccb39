#include "backend/cut.h"

#include <algorithm>

#include "base/check.h"

namespace facet {

Ranges cut_ranges(int64_t n, const Cut& cut, int n_shard) {
  const int64_t units = (n + cut.unit - 1) / cut.unit;
  Ranges r(size_t(n_shard), {0, n});
  if (cut.side == Cut::Side::kWhole) return r;
  for (int64_t i = 0; i < n_shard; ++i) {
    int64_t first = i * units / n_shard, end = (i + 1) * units / n_shard;
    if (cut.repeat && units < n_shard) end = first + 1;
    r[size_t(i)] = {std::min(n, first * cut.unit), std::min(n, end * cut.unit)};
  }
  return r;
}

bool cuts_blocks_apart(const Ranges& r, DType type) {
  const int64_t block = dtype_info(type).block;
  return std::all_of(r.begin(), r.end(), [&](const Range& x) { return x.begin % block == 0 && x.end % block == 0; });
}

CutTensor cut_tensor(const TensorView& t, const Cut& cut, Range range) {
  CutTensor c{t, {}};
  if (cut.side == Cut::Side::kWhole) return c;
  const bool in = cut.side == Cut::Side::kIn;
  const int64_t folds = in ? 1 : cut.folds, n_out = t.ne[1] / folds, stacked = t.ne[2] * t.ne[3] * folds;
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
