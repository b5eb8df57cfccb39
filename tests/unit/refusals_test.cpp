// What is refused, of files with the shapes of the published models: every tensor that is missing, has another shape or
// another type, drafters whose keys or tensors contradict each other, and drafters of another target. The files are
// headers; their weights are holes.
#include <gtest/gtest.h>

#include <algorithm>

#include "backend/cpu/cpu_ref.h"
#include "model/dflash_bind.h"
#include "model/gemma4_bind.h"
#include "model/mtp_bind.h"
#include "support/drafter_refusal.h"
#include "support/real_shapes.h"

namespace facet::test {
namespace {

SynthPlan without_divisors(const std::string& preset) {  // zeros are none
  SynthPlan p = shape(preset);
  std::erase_if(p.tensors, [](auto& t) { return t.name == "rope_freqs.weight"; });
  return p;
}

std::string target_says(const SynthPlan& p) {
  const HolesDir dir;
  const GgufFile file = must(GgufFile::open(write_header(p, dir, "model.gguf")));
  const auto m = gemma4_config(file);
  if (!m) return m.error().message();
  CpuRef b(1);
  const auto w = bind_gemma4(b, file, *m, 0);
  return w ? "" : w.error().message();
}

ModelCfg target(const std::string& preset) {
  const HolesDir dir;
  return must(gemma4_config(must(GgufFile::open(write_header(without_divisors(preset), dir, "model.gguf")))));
}

std::string drafter_says(const SynthPlan& p, const ModelCfg& m) {
  const HolesDir dir;
  return drafter_refusal(write_header(p, dir, "draft.gguf"), m);
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// A plan with its i-th tensor gone, wider, or of a type that it may not have.
SynthPlan spoiled(const SynthPlan& p, size_t i, const std::string& how) {
  SynthPlan q = p;
  SynthTensor& t = q.tensors[i];
  if (how == "wider") t.ne.size() > 1 ? t.ne[1] += 32 : t.ne[0] += 32;
  if (how == "type") t.type = t.ne.size() > 1 ? DType::kI32 : DType::kQ8_0;
  if (how == "missing" && i == 0) t.name = "elsewhere." + t.name;  // the file begins with a large one
  if (how == "missing" && i > 0) q.tensors.erase(q.tensors.begin() + ptrdiff_t(i));
  return q;
}

// Tensors outside the layers, and those of the layers given.
std::vector<size_t> tensors_of(const SynthPlan& p, const std::vector<int>& layers) {
  std::vector<size_t> all;
  for (size_t i = 0; i < p.tensors.size(); ++i) {
    const std::string& name = p.tensors[i].name;
    if (!name.starts_with("blk.") || std::any_of(layers.begin(), layers.end(), [&](int l) {
          return name.starts_with("blk." + std::to_string(l) + ".");
        }))
      all.push_back(i);
  }
  return all;
}

TEST(Refusals, EveryTensorOfATarget) {
  const struct {
    const char* preset;
    std::vector<int> layers;
    std::vector<std::string> optional;  // may be missing
    std::vector<std::string> unread;    // of layers that share K/V: published files have them, nobody looks
  } table[] = {{"31b", {5}, {"layer_output_scale.weight"}, {}},
               {"26b-a4b", {28}, {"layer_output_scale.weight", "ffn_down_exps.scale"}, {}},
               {"e2b",
                {4, 34},
                {"layer_output_scale.weight", "blk.4.attn_v.weight"},
                {"blk.34.attn_k.weight", "blk.34.attn_v.weight", "blk.34.attn_k_norm.weight"}}};
  const auto any = [](const std::vector<std::string>& names, const std::string& name) {
    return std::any_of(names.begin(), names.end(), [&](auto& n) { return name.ends_with(n); });
  };
  for (const auto& row : table) {
    const SynthPlan p = without_divisors(row.preset);
    ASSERT_EQ(target_says(p), "") << row.preset;
    for (const size_t i : tensors_of(p, row.layers))
      for (const char* how : {"missing", "wider", "type"}) {
        const std::string& name = p.tensors[i].name;
        if (name == "token_embd.weight" && how == std::string("wider")) continue;                // another vocabulary
        if (p.tensors[i].ne == std::vector<int64_t>{1} && how == std::string("type")) continue;  // is no block
        const std::string says = target_says(spoiled(p, i, how));
        if (any(row.unread, name) || (any(row.optional, name) && how == std::string("missing"))) {
          EXPECT_EQ(says, "") << row.preset << " " << name << " " << how;
          continue;
        }
        // Experts may come in two tensors for one.
        const bool split = name.ends_with("ffn_gate_up_exps.weight") && how == std::string("missing");
        EXPECT_TRUE(has(says, (split ? "blk.28.ffn_gate_exps.weight" : name) + ": expected ") &&
                    has(says, "model.gguf"))
            << row.preset << " " << how << "\n"
            << says;
        EXPECT_TRUE(has(says, how == std::string("missing") ? "found no such tensor" : "found "));
      }
    SynthPlan more = p;
    more.tensors.push_back({"blk.3.attn_sinks", {32}});
    EXPECT_TRUE(has(target_says(more), "blk.3.attn_sinks: expected only the tensors of a known layer"));
  }
}

TEST(Refusals, EveryTensorOfADrafter) {
  // What is said where the tensor is not named itself, because it is another one that then does not fit.
  const std::vector<std::pair<std::string, std::string>> otherwise = {
      {"wider blk.0.attn_q_norm.weight", "attn_q.weight: expected a multiple of"},
      {"wider blk.3.ffn_gate.weight", "blk.3.ffn_up.weight: expected [1024 x 8224]"},
      {"wider blk.4.ffn_gate.weight", "blk.4.ffn_"},
      {"wider nextn.pre_projection.weight", "width: expected 1056, as the tensors have, found 1024"},
      {"wider fc.weight", "width (rows of fc.weight)"},
      {"wider blk.0.attn_q.weight", "attn_q.weight: expected a multiple of"},
      {"wider blk.0.attn_k.weight", "attn_k.weight: expected a multiple of"},
      {"wider blk.0.ffn_gate.weight", "FFN width: expected "},
      {"wider nextn.post_projection.weight", "width of the target (rows of the post-projection)"},
      {"wider token_embd.weight", "vocabulary: expected 262144, as the target has"},
      {"missing blk.3.attn_q.weight", "number of layers: expected 4"},
      {"missing blk.4.attn_q.weight", "number of layers: expected 5"},
      {"missing blk.0.attn_q.weight", "blk.N.attn_q.weight: expected 1 to 64 layers, found none"},
  };
  for (const std::string base : {"31b", "26b-a4b"}) {
    const ModelCfg m = target(base);
    for (const std::string kind : {"-mtp", "-dflash"}) {
      const SynthPlan p = without_divisors(base + kind);
      ASSERT_EQ(drafter_says(p, m), "") << base << kind;
      for (const size_t i : tensors_of(p, {0, kind == "-mtp" ? 3 : 4}))
        for (const char* how : {"missing", "wider", "type"}) {
          const std::string& name = p.tensors[i].name;
          const bool scale = name.ends_with("layer_output_scale.weight");
          if (scale && how == std::string("type")) continue;  // is no block
          const std::string says = drafter_says(spoiled(p, i, how), m);
          if (scale && how == std::string("missing")) {
            EXPECT_EQ(says, "");
            continue;
          }
          const auto other =
              std::find_if(otherwise.begin(), otherwise.end(), [&](auto& o) { return o.first == how + (" " + name); });
          EXPECT_TRUE((has(says, name) || (other != otherwise.end() && has(says, other->second))) &&
                      has(says, "draft.gguf") && has(says, "found "))
              << base << kind << " " << how << " " << name << "\n"
              << says;
        }
    }
  }
}

TEST(Refusals, EveryKeyOfADrafter) {
  const std::string a = "gemma4-assistant.", d = "dflash.";
  const auto clusters = [](int n) {  // with an ordering of zeros
    return [n](SynthPlan& p) {
      p.tensors.push_back({"masked_embd_centroids.weight", {1024, n}, SynthFill::kNormal, DType::kQ8_0});
      p.tensors.push_back({"masked_embd_ordering", {262144}, SynthFill::kNormal, DType::kI32});
    };
  };
  const auto sliding = [](int n) { return std::vector<bool>(size_t(n), true); };
  const struct {
    const char* preset;
    Edit edit;
    std::string says;
  } table[] = {
      {"31b-mtp", set("general.architecture", std::string("llama")),
       "general.architecture: expected a drafter, found llama"},
      {"31b-mtp", set("general.architecture", std::string("gemma4")), "this is a target: give it with -m"},
      {"31b-mtp", set(a + "block_count", int64_t(5)), "number of layers: expected 5"},
      {"31b-mtp", set(a + "embedding_length", int64_t(1000)), "width: expected 1024, as the tensors have, found 1000"},
      {"31b-mtp", set(a + "embedding_length_out", int64_t(2816)), "width of the target: expected 5376"},
      {"31b-mtp", set(a + "attention.head_count", int64_t(16)), "number of heads: expected 32"},
      {"31b-mtp", set(a + "feed_forward_length", int64_t(4096)), "FFN width: expected 8192"},
      {"31b-mtp", set(a + "attention.head_count_kv", std::vector<int64_t>{16, 16, 8, 4}),
       "K/V heads of layer 2: expected 16, as the target has, found 8"},
      {"31b-mtp", set(a + "attention.sliding_window_pattern", sliding(3)),
       "sliding_window_pattern: expected 4 layers, found 3"},
      {"31b-mtp", set(a + "attention.sliding_window_pattern", sliding(4)),
       "head width of layer 3, which reads layer 58 of the target: expected 256"},
      {"31b-mtp", set(a + "attention.layer_norm_rms_epsilon", 3.0), "rms_norm_eps: expected a number in [0, 1]"},
      {"31b-mtp", set(a + "final_logit_softcapping", -2.0), "final_logit_softcapping: expected a number in [0, "},
      {"31b-mtp", set(a + "rope.freq_base", .5), "rope_theta: expected a number in [1, "},
      {"31b-mtp", clusters(1000), "262144 tokens in 1000 clusters: expected a multiple of 1000, found 262144"},
      {"31b-mtp", both(clusters(2048), set(a + "centroid_top_k", int64_t(0))),
       "centroid_top_k: expected an integer in [1, "},
      {"31b-mtp", clusters(2048), "masked_embd_ordering: expected every token once, or 128 tokens in each of 2048"},
      {"31b-mtp", set(a + "rope.scaling.type", std::string("yarn")), "rope_parameters: expected proportional"},
      {"31b-mtp", set(a + "rope.freq_base", std::string("x")), a + "rope.freq_base"},
      {"31b-dflash", drop("tokenizer.ggml.mask_token_id"),
       "mask_token_id: expected an integer in [0, 262143], found none"},
      {"31b-dflash", set("tokenizer.ggml.mask_token_id", int64_t(262144)), "found 262144"},
      {"31b-dflash", set(d + "block_size", int64_t(65)), "block_size: expected an integer in [2, 64], found 65"},
      {"31b-dflash", drop(d + "target_layers"), "target_layer_ids: expected 6 layers of the target, found none"},
      {"31b-dflash", set(d + "target_layers", std::vector<int64_t>{2, 13, 24, 36, 47}),
       "target_layer_ids: expected 6 layers, as fc.weight has columns for, found 5"},
      {"31b-dflash", set(d + "target_layers", std::vector<int64_t>{2, 13, 24, 36, 47, 60}),
       "target_layer_ids: expected ascending layers in [0, 59) of the target's 60, found 59 at place 5"},
      {"31b-dflash", set(d + "target_layers", std::vector<int64_t>{2, 13, 13, 36, 47, 58}), "found 12 at place 2"},
      {"31b-dflash", set(d + "target_layers", std::vector<int64_t>{0, 13, 24, 36, 47, 58}), "found -1 at place 0"},
      {"31b-dflash", set(d + "block_count", int64_t(6)), "number of layers: expected 6"},
      {"31b-dflash", set(d + "embedding_length", int64_t(5000)), "width: expected 5376"},
      {"31b-dflash", set(d + "attention.head_count", int64_t(32)), "number of heads: expected 64"},
      {"31b-dflash", set(d + "feed_forward_length", int64_t(1)), "FFN width: expected 10752"},
      {"31b-dflash", set(d + "attention.sliding_window_pattern", sliding(4)),
       "layer_types: expected 5 layers, found 4"},
      {"31b-dflash", set(d + "attention.sliding_window", int64_t(0)), "sliding_window: expected an integer in [1, "},
      {"31b-dflash", drop(d + "rope.freq_base"), "rope_theta: expected a number in [1, "},
      {"31b-dflash", set(d + "rope.scaling.type", std::string("yarn")), "rope_scaling: expected none, found yarn"},
      {"31b-dflash", set(d + "dspark.markov_rank", int64_t(4)), "a DSpark head"},
  };
  const ModelCfg m = target("31b");
  for (const auto& row : table) {
    SynthPlan p = without_divisors(row.preset);
    row.edit(p);
    const std::string says = drafter_says(p, m);
    EXPECT_TRUE(has(says, row.says)) << row.says << "\n" << says;
    EXPECT_TRUE(has(says, "draft.gguf")) << says;
  }
}

TEST(Refusals, DraftersOfAnotherTarget) {
  for (const std::string base : {"31b", "26b-a4b"})
    for (const std::string kind : {"-mtp", "-dflash"}) {
      const SynthPlan p = without_divisors(base + kind);
      for (const std::string other : {"31b", "26b-a4b", "12b", "e4b", "e2b"}) {
        const std::string says = drafter_says(p, target(other));
        EXPECT_EQ(says.empty(), other == base) << base << kind << " beside " << other << "\n" << says;
        EXPECT_EQ(has(says, "width"), other != base);
        EXPECT_EQ(has(says, "the drafter was made for another target"), other != base) << says;
      }
    }
}

}  // namespace
}  // namespace facet::test
