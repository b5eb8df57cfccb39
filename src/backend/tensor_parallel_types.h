#pragma once
#include <array>
#include <cstddef>
#include <cstdint>

#include "backend/buffer_rows.h"
#include "backend/optional.h"
#include "backend/placed.h"
#include "backend/shard_spec.h"

namespace facet {

// The associated types of TensorParallel.
template <class B, class Link>
struct TensorParallelTypes {
  using Have = Has<B>;
  template <class T>
  using Each = std::array<T, kMaxShards>;

  struct Buffer {
    Each<typename B::Rows> part{}, whole{};  // whole: of columns that were divided, for those who need all
    const ShardRanges* held = nullptr;       // columns in each shard; null: all
    int rows = 0, cols = 0;
  };
  using Rows = BufferRows<Buffer>;
  struct Weight {
    Each<typename B::Weight> part{};  // false where a shard holds none of it
    ShardSpec::Side side = ShardSpec::Side::kWhole;
    const ShardRanges* ranges = nullptr;  // of the side that is divided
    DType type = DType::kF32;
    int64_t n_out = 0, n_in = 0, n_stack = 1;
    const char* name = "";
    explicit operator bool() const { return n_out > 0; }
    unsigned holders() const {
      unsigned m = 0;
      for (size_t i = 0; i < kMaxShards; ++i) m |= unsigned(bool(part[i])) << i;
      return m;
    }
  };
  template <class T>
  struct Copies {
    Each<T> part{};
    explicit operator bool() const { return bool(part[0]); }
  };
  using Vec = Copies<typename B::Vec>;
  using Freqs = Each<typename B::Freqs>;
  using Table = Copies<typename B::Table>;
  struct KvLayer {
    Each<typename B::KvLayer> part{};
    int head_dim = 0;
    int64_t bytes = 0;  // of a row, in all shards
    int64_t row_bytes() const { return bytes; }
  };
  template <class T>
  struct Values {  // the host reads the first shard's
    Each<T> part{};
    const Link* link = nullptr;
    auto operator[](size_t i) const {
      const auto v = part[0][i];
      if constexpr (requires { link->check(); }) link->check();
      return v;
    }
  };
  using Ids = Values<typename B::Ids>;
  using Scores = Values<typename B::Scores>;
};

}  // namespace facet
