#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "formats/dtype.h"

namespace facet {

constexpr int kMaxShards = 8;

// How a matrix [n_out, n_in], or each of a stack, is divided among shards: by its outputs or by its inputs, in units
// that stay together.
struct ShardSpec {
  enum class Side : uint8_t { kWhole, kOut, kIn };
  Side side = Side::kWhole;
  int64_t unit = 1;
  bool repeat = false;  // fewer units than shards: each is held by several, as K/V heads are; else some hold none
  int folds = 1;        // outputs are so many parts of equal size, each of which is divided: gate rows, then up rows
};

struct Range {
  int64_t begin = 0, end = 0;
  int64_t size() const { return end - begin; }
  bool operator==(const Range&) const = default;
};
using ShardRanges = std::vector<Range>;  // of each shard

// The ranges of n elements that shards get, as even as units allow. The last unit may be shorter.
ShardRanges shard_ranges(int64_t n, const ShardSpec& spec, int n_shard);
// Whether every range ends between blocks of the type.
bool ranges_hold_whole_blocks(const ShardRanges& r, DType type);

// The part of a tensor that one shard holds. Its bytes are those of the file, if they lie in one piece there.
struct ShardedTensor {
  TensorView view;
  std::vector<std::byte> bytes;  // view's, or none
};
ShardedTensor shard_tensor(const TensorView& t, const ShardSpec& spec, Range range);

}  // namespace facet
