#pragma once
#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "backend/shard_spec.h"
#include "base/result.h"
#include "model/types.h"

namespace facet {

// How a model is divided among shards (tensor parallelism): query heads with the K/V heads that they read, columns of
// feed-forward layers and of each expert, and the vocabulary. What is not named here is whole in every shard.
//
// Heads are divided evenly. A K/V head that several shards' queries read is held by each of these.
bool divides(const ModelCfg& m, int n_shard);
std::vector<int> shard_counts(const ModelCfg& m);  // the numbers, from 2 on, that divide it
Status check_shards(const std::string& path, const ModelCfg& m, int n_shard);
// What one shard has, where the number divides the model; else all of it.
ModelCfg shard_config(const ModelCfg& m, int n_shard);

// The cuts of a model's matrices; whole ones where the number does not divide it.
class ModelShardSpecs {
 public:
  ModelShardSpecs(const ModelCfg& m, int n_shard) : whole_(n_shard < 2 || !divides(m, n_shard)) {}
  ShardSpec heads(int64_t head_dim) const { return divided({.side = ShardSpec::Side::kOut, .unit = head_dim}); }
  ShardSpec kv_heads(int64_t head_dim) const {
    return divided({.side = ShardSpec::Side::kOut, .unit = head_dim, .repeat = true});
  }
  ShardSpec of_heads(int64_t head_dim) const { return divided({.side = ShardSpec::Side::kIn, .unit = head_dim}); }
  // down: the matrix that reads the hidden columns; null: it is missing, which is somebody else's error.
  ShardSpec hidden(const TensorView* down, int folds = 1) const {
    return divided({.side = ShardSpec::Side::kOut, .unit = hidden_unit(down), .folds = folds});
  }
  ShardSpec of_hidden(const TensorView* down) const {
    return divided({.side = ShardSpec::Side::kIn, .unit = hidden_unit(down)});
  }
  ShardSpec vocabulary() const { return divided({.side = ShardSpec::Side::kOut, .unit = kVocabularyUnit}); }

 private:
  static constexpr int64_t kHiddenUnit = 64;      // columns that share a scale of int8 activations
  static constexpr int64_t kVocabularyUnit = 16;  // a strip of outputs
  // Whole blocks of the matrix that reads them: 256 columns of K-quants.
  static int64_t hidden_unit(const TensorView* down) {
    return down ? std::max<int64_t>(kHiddenUnit, dtype_info(down->type).block) : kHiddenUnit;
  }
  ShardSpec divided(ShardSpec c) const { return whole_ ? ShardSpec{} : c; }
  bool whole_;
};

// How a model's tensor is divided, as its binding does (gemma4_bind.h).
ShardSpec shard_spec_of(const ModelCfg& m, int n_shard, const TensorView& t, std::span<const TensorView> all);
// What each shard has of it.
std::vector<TensorView> shard_views(const ModelCfg& m, int n_shard, const TensorView& t,
                                    std::span<const TensorView> all);

}  // namespace facet
