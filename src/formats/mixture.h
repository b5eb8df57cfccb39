#pragma once
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "formats/dtype.h"

// Which type each tensor of a quantised file has: llama-quantize's rules as they act on Gemma 4 and its
// drafters, without an importance matrix. The only place that knows them.
namespace facet {

// Where a rule gives a tensor more bits; i counts the n tensors of its kind in layer order.
enum class MoreBits : uint8_t {
  kNever,
  kSpread,     // the first and last eighth, and every third in between
  kFirst2,     // i < 2
  kFirst4,     // i < 4
  kEighth,     // i < n / 8
  kSixteenth,  // i < n / 16
  kSharedKv,   // all, if four or more query heads of layer 0 share a K/V head
};

struct Mixture {
  std::string_view name;  // as llama-quantize spells it
  int64_t file_type;      // general.file_type
  DType base;
  DType embedding;  // of the token tables while they are also the output matrix, or of output.weight
  DType attn_output;
  struct Rule {
    MoreBits where;
    DType more, otherwise;
  } attn_v, ffn_down;
};

std::span<const Mixture> mixtures();
// By name, whatever its case; Q3_K, Q4_K and Q5_K mean the _M mixtures. Null if there is none.
const Mixture* find_mixture(std::string_view name);

// The same without more bits anywhere: one type for all that is quantised.
Mixture pure(const Mixture&);

// A tensor as the converter wrote it.
struct MixtureTensor {
  std::string_view name;
  std::span<const int64_t> ne;
  DType type;
};

struct MixtureModel {
  int64_t n_layer = 0;
  int64_t heads_per_kv = 1;  // of layer 0
};

// The type of each tensor in the quantised file. Vectors, norms, the router, per_layer_model_proj and
// whatever is no weight keep theirs. Rows that the block of a type does not divide get the fallback of that
// type.
std::vector<DType> mixture_types(const Mixture& m, std::span<const MixtureTensor> tensors, const MixtureModel& model);

}  // namespace facet
