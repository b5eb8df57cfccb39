#pragma once
#include <algorithm>
#include <span>
#include <vector>

#include "backend/shard_spec.h"
#include "backend/step.h"

namespace facet {

// The link between shards whose rows the host can read; shards on devices have a link of their own (cuda/cuda_link.h).
template <class B>
class HostLink {
 public:
  using Rows = typename B::Rows;
  using Weight = typename B::Weight;

  // Every shard's rows become the sum of those whose bit is set in `has`, added in the order of the shards: its bits
  // depend on the number of shards and on nothing else.
  void sum(std::span<const Rows> rows, unsigned has) {
    const Rows* total = nullptr;
    for (size_t i = 0; i < rows.size(); ++i) {
      if (!(has >> i & 1)) continue;
      if (!total)
        total = &rows[i];
      else
        for (int t = 0; t < total->rows; ++t)
          for (int c = 0; c < total->cols; ++c) total->row(t)[c] += rows[i].row(t)[c];
    }
    for (const Rows& r : rows)
      for (int t = 0; t < r.rows && &r != total; ++t) std::copy_n(total->row(t), r.cols, r.row(t));
  }

  // Columns that shards hold, side by side.
  void gather(std::span<const Rows> to, std::span<const Rows> from, const ShardRanges& at) {
    for (const Rows& w : to)
      for (size_t i = 0; i < from.size(); ++i)
        for (int t = 0; t < w.rows; ++t) std::copy_n(from[i].row(t), from[i].cols, w.row(t) + at[i].begin);
  }

  // embed for the tokens in `own`, whose rows are the table's; zeros for the others.
  void embed(B& b, Rows x, Weight table, const Step& s, float scale, Range own) {
    const auto here = [&](int t) { return s.token[t] >= own.begin && s.token[t] < own.end; };
    token_.resize(size_t(x.rows));
    for (int t = 0; t < x.rows; ++t) token_[size_t(t)] = here(t) ? int32_t(s.token[t] - own.begin) : 0;
    Step mine = s;
    mine.token = token_.data();
    b.embed(x, table, mine, scale);
    for (int t = 0; t < x.rows; ++t)
      if (!here(t)) std::fill_n(x.row(t), x.cols, 0.f);
  }

 private:
  std::vector<int32_t> token_;
};

}  // namespace facet
