#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/result.h"
#include "formats/dtype.h"
#include "formats/gguf.h"

// Full-size Gemma 4 GGUF files with random weights: the names, shapes, types and metadata of the published
// models as llama-quantize would write them, for measuring speed and memory without a download. They say
// nothing sensible.
namespace facet {

enum class SynthFill : uint8_t {
  kNormal,     // a matrix: deviation 1/sqrt(ne[0])
  kUnit,       // norms and scales: near 1
  kRouter,     // f32 matrix of deviation 1
  kRopeFreqs,  // a quarter of ones, then 1e30
  kShift,      // biases: deviation 3
  kClipLow,    // what clipped linears clamp to: -1.5, and
  kClipHigh,   // 1.25
};

struct SynthTensor {
  std::string name;
  std::vector<int64_t> ne;
  SynthFill fill = SynthFill::kNormal;
  DType type = DType::kF32;
  double skew = 0;  // of a router: see synth_skew_router
};

struct SynthMeta {
  std::string key;
  std::variant<int64_t, double, bool, std::string, std::vector<int64_t>, std::vector<double>, std::vector<bool>,
               std::vector<std::string>>
      v;
};

// Everything of the file but the weights, in file order.
struct SynthPlan {
  std::vector<SynthMeta> meta;
  std::vector<SynthTensor> tensors;
};

std::span<const std::string_view> synth_presets();  // "31b", "31b-dflash", ...
std::span<const std::string_view> synth_quants();   // "Q4_K_M", ...

// is_pure: without the mixture's larger types. An Error if the preset or quant is not one of the above.
Result<SynthPlan> synth_plan(std::string_view preset, std::string_view quant, bool is_pure = false);
// Gives the plan the vocabulary of another model, filled up to the plan's number of tokens with ones whose text,
// <unused0> and so on, is no other token's and that no merge leads to: they are drawn and read, but no text becomes
// them. An Error if the plan is a drafter's, which has its model's, or `from` has no vocabulary or a larger one.
Status synth_add_vocab(SynthPlan& plan, const GgufFile& from);
// Some experts are chosen more often than others: of a layer's N experts in an order of its own, that of place i = 1.. has
// a router's row of i^-skew times the length, so that its logits reach the largest less often. An Error of a plan
// without experts.
Status synth_skew_router(SynthPlan& plan, double skew);
// An mmproj file beside them: the encoders of pictures and sound of a model ("e", "12b", ...), in one of four types.
std::span<const std::string_view> synth_mmproj_presets();
std::span<const std::string_view> synth_mmproj_types();
Result<SynthPlan> synth_mmproj_plan(std::string_view preset, std::string_view type);
uint64_t synth_bytes(const SynthPlan& plan);  // of the finished file

// Called with bytes done and in all, about every 32 MB.
using SynthProgress = std::function<void(uint64_t done, uint64_t total)>;

// Writes the file; the same seed gives the same bytes. Refuses before writing if the disk has too little
// room.
Status synth_write(const SynthPlan& plan, const std::string& path, uint64_t seed, const SynthProgress& progress);

}  // namespace facet
