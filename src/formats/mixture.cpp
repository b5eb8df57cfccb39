#include "formats/mixture.h"

#include <algorithm>
#include <cstdlib>
#include <string>

namespace facet {
namespace {

using enum DType;

constexpr Mixture::Rule always(DType t) { return {MoreBits::kNever, t, t}; }

// The same type everywhere but in the token tables.
constexpr Mixture plain(std::string_view name, int64_t file_type, DType t, DType embedding) {
  return {name, file_type, t, embedding, t, always(t), always(t)};
}

constexpr Mixture kMixtures[] = {
    plain("F16", 1, kF16, kF16),
    plain("BF16", 32, kBF16, kBF16),
    plain("Q8_0", 7, kQ8_0, kQ8_0),
    plain("Q6_K", 18, kQ6_K, kQ6_K),
    {"Q5_K_M", 17, kQ5_K, kQ6_K, kQ5_K, {MoreBits::kSpread, kQ6_K, kQ5_K}, {MoreBits::kSpread, kQ6_K, kQ5_K}},
    plain("Q5_K_S", 16, kQ5_K, kQ6_K),
    plain("Q5_1", 9, kQ5_1, kQ6_K),
    plain("Q5_0", 8, kQ5_0, kQ6_K),
    {"Q4_K_M", 15, kQ4_K, kQ6_K, kQ4_K, {MoreBits::kSpread, kQ6_K, kQ4_K}, {MoreBits::kSpread, kQ6_K, kQ4_K}},
    {"Q4_K_S", 14, kQ4_K, kQ6_K, kQ4_K, {MoreBits::kFirst4, kQ5_K, kQ4_K}, {MoreBits::kEighth, kQ5_K, kQ4_K}},
    plain("Q4_1", 3, kQ4_1, kQ6_K),
    plain("Q4_0", 2, kQ4_0, kQ6_K),
    {"IQ4_NL", 25, kIQ4_NL, kQ6_K, kIQ4_NL, {MoreBits::kSharedKv, kQ5_K, kIQ4_NL}, {MoreBits::kEighth, kQ5_K, kIQ4_NL}},
    {"IQ4_XS", 30, kIQ4_XS, kQ6_K, kIQ4_XS, {MoreBits::kSharedKv, kQ5_K, kIQ4_XS}, {MoreBits::kEighth, kQ5_K, kIQ4_XS}},
    {"Q3_K_L", 13, kQ3_K, kQ6_K, kQ5_K, always(kQ5_K), always(kQ5_K)},
    {"Q3_K_M", 12, kQ3_K, kQ6_K, kQ4_K, {MoreBits::kFirst2, kQ5_K, kQ4_K}, {MoreBits::kSixteenth, kQ5_K, kQ4_K}},
    plain("Q3_K_S", 11, kQ3_K, kQ6_K),
    {"Q2_K", 10, kQ2_K, kQ6_K, kQ3_K, {MoreBits::kSharedKv, kQ4_K, kQ3_K}, always(kQ3_K)},
};

DType by_rule(const Mixture::Rule& r, int64_t i, int64_t n, const MixtureModel& model) {
  const auto more = [&] {
    switch (r.where) {
      case MoreBits::kNever:
        return false;
      case MoreBits::kSpread:
        return i < n / 8 || i >= 7 * n / 8 || (i - n / 8) % 3 == 2;
      case MoreBits::kFirst2:
        return i < 2;
      case MoreBits::kFirst4:
        return i < 4;
      case MoreBits::kEighth:
        return i < n / 8;
      case MoreBits::kSixteenth:
        return i < n / 16;
      case MoreBits::kSharedKv:
        return model.heads_per_kv >= 4;
    }
    return false;
  };
  return more() ? r.more : r.otherwise;
}

// What takes the place of t where its block does not divide a row: the next type of 32, at last F16.
DType fallback(DType t, int64_t ne0) {
  const auto fits = [&](DType u) { return ne0 % dtype_info(u).block == 0; };
  if (fits(t)) return t;
  DType u = kF16;
  switch (t) {
    case kQ2_K:
    case kQ3_K:
      u = kQ4_0;
      break;
    case kQ4_K:
      u = kQ5_0;
      break;
    case kQ5_K:
      u = kQ5_1;
      break;
    case kQ6_K:
      u = kQ8_0;
      break;
    case kIQ4_XS:
    case DType::kIQ1_S:
    case DType::kIQ1_M:
    case DType::kIQ2_XXS:
    case DType::kIQ2_XS:
    case DType::kIQ2_S:
    case DType::kIQ3_XXS:
    case DType::kIQ3_S:
      u = kIQ4_NL;
      break;
    default:
      break;
  }
  return fits(u) ? u : kF16;
}

bool has(std::string_view name, std::string_view part) { return name.find(part) != name.npos; }

bool stays(const MixtureTensor& t) {
  const bool vector =
      std::all_of(t.ne.begin() + std::min<size_t>(1, t.ne.size()), t.ne.end(), [](int64_t n) { return n == 1; });
  return vector || !t.name.ends_with("weight") || t.name.ends_with("_norm.weight") ||
         has(t.name, "ffn_gate_inp.weight") || has(t.name, "per_layer_model_proj") || !dtype_info(t.type).matmul;
}

// blk.<i>.
int64_t layer_of(std::string_view name) {
  return name.starts_with("blk.") ? std::atoll(std::string(name.substr(4)).c_str()) : -1;
}

bool is_attn_v(const MixtureTensor& t) { return t.name.ends_with("attn_v.weight"); }

char upper(char c) { return c >= 'a' && c <= 'z' ? char(c - 'a' + 'A') : c; }

}  // namespace

std::span<const Mixture> mixtures() { return kMixtures; }

const Mixture* find_mixture(std::string_view name) {
  std::string wanted(name);
  std::transform(wanted.begin(), wanted.end(), wanted.begin(), upper);
  if (wanted == "Q3_K" || wanted == "Q4_K" || wanted == "Q5_K") wanted += "_M";
  const auto* m =
      std::find_if(std::begin(kMixtures), std::end(kMixtures), [&](const Mixture& x) { return x.name == wanted; });
  return m == std::end(kMixtures) ? nullptr : m;
}

Mixture pure(const Mixture& m) {
  const Mixture::Rule base{MoreBits::kNever, m.base, m.base};
  return {.name = m.name,
          .file_type = m.file_type,
          .base = m.base,
          .embedding = m.base,
          .attn_output = m.base,
          .attn_v = base,
          .ffn_down = base};
}

std::vector<DType> mixture_types(const Mixture& m, std::span<const MixtureTensor> tensors, const MixtureModel& model) {
  std::vector<int64_t> v_layers;  // that have an attn_v: its rank among them is i
  for (const MixtureTensor& t : tensors)
    if (is_attn_v(t)) v_layers.push_back(layer_of(t.name));
  std::sort(v_layers.begin(), v_layers.end());
  const bool tied =
      std::none_of(tensors.begin(), tensors.end(), [](const MixtureTensor& t) { return t.name == "output.weight"; });

  std::vector<DType> types;
  for (const MixtureTensor& t : tensors) {
    if (stays(t)) {
      types.push_back(t.type);
      continue;
    }
    DType type = m.base;
    if (t.name == "output.weight" || (tied && t.name.ends_with("token_embd.weight"))) {
      type = m.embedding;
    } else if (is_attn_v(t)) {
      const auto rank = std::lower_bound(v_layers.begin(), v_layers.end(), layer_of(t.name)) - v_layers.begin();
      type = by_rule(m.attn_v, rank, int64_t(v_layers.size()), model);
    } else if (has(t.name, "ffn_down")) {
      type = by_rule(m.ffn_down, layer_of(t.name), model.n_layer, model);
    } else if (t.name.ends_with("attn_output.weight")) {
      type = m.attn_output;
    }
    types.push_back(fallback(type, t.ne[0]));
  }
  return types;
}

}  // namespace facet
