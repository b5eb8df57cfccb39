// What the configuration makes of files with the shapes of the published models: donors of shared K/V, bytes of the
// cache against the formula, angles of RoPE; and a table of files that contradict themselves. The files are headers;
// their weights are holes.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "backend/cpu/cpu_ref.h"
#include "cache/kv_plan.h"
#include "model/gemma4_config.h"
#include "model/mtp_config.h"
#include "support/real_shapes.h"
#include "tools/ram_rate.h"

namespace facet::test {
namespace {

ModelCfg config(const std::string& preset) {
  const HolesDir dir;
  return must(gemma4_config(must(GgufFile::open(write_header(shape(preset), dir, "model.gguf")))));
}

TEST(RealShapes, WhereKIsV) {
  for (const std::string preset : {"31b", "26b-a4b", "12b", "e4b", "e2b"})
    for (const LayerCfg& c : config(preset).layer) EXPECT_EQ(c.k_is_v, c.window == 0 && preset[0] != 'e') << preset;
}

TEST(RealShapes, SharedLayersReadTheLastOwnerOfTheirKind) {
  const struct {
    const char* preset;
    int owners, sliding, full;
  } table[] = {{"31b", 60, -1, -1}, {"26b-a4b", 30, -1, -1}, {"e4b", 24, 22, 23}, {"e2b", 15, 13, 14}};
  for (const auto& row : table) {
    const ModelCfg m = config(row.preset);
    for (int l = 0; l < m.n_layer(); ++l) {
      const LayerCfg& c = m.layer[size_t(l)];
      EXPECT_EQ(c.query_only, l >= row.owners) << row.preset << " " << l;
      EXPECT_EQ(c.kv_source, l < row.owners ? l : c.window > 0 ? row.sliding : row.full) << row.preset << " " << l;
    }
  }
}

// What a token of an answer reads, by place: of 26B-A4B's experts 8 of 128, of tables a row.
TEST(RealShapes, BytesOfATokenByPlace) {
  const auto bytes = [](const std::string& preset, const WeightsInRam& in_ram) {
    const HolesDir dir;
    const GgufFile file = must(GgufFile::open(write_header(shape(preset, "Q4_K_M"), dir, "model.gguf")));
    return token_bytes(file, must(gemma4_config(file)), in_ram);
  };
  const TokenBytes none = bytes("26b-a4b", {}), all = bytes("26b-a4b", {.expert_layers = 30}),
                   half = bytes("26b-a4b", {.expert_layers = 15});
  EXPECT_EQ(none.in_ram, 0);
  EXPECT_EQ(none.on_gpu, all.in_ram + all.on_gpu);
  EXPECT_EQ(none.on_gpu, half.in_ram + half.on_gpu);
  EXPECT_NEAR(double(all.in_ram) / 1e9, .95, .02);
  EXPECT_NEAR(double(none.on_gpu) / 1e9, 2.59, .05);
  const TokenBytes dense = bytes("31b", {}), ffn = bytes("31b", {.ffn_layers = 60});
  EXPECT_EQ(dense.on_gpu, ffn.in_ram + ffn.on_gpu);
  EXPECT_GT(ffn.in_ram, 2 * ffn.on_gpu);
  const TokenBytes table = bytes("e4b", {.tables = true});
  EXPECT_LT(table.in_ram, 20000);
  EXPECT_GT(table.in_ram, 2000);
}

TEST(RealShapes, AssistantsReadTheLastLayersOfTheirTargets) {
  const struct {
    const char* preset;
    std::vector<int> donors;
  } table[] = {{"31b", {58, 58, 58, 59}}, {"26b-a4b", {28, 28, 28, 29}}};
  for (const auto& row : table) {
    SynthPlan p = shape(std::string(row.preset) + "-mtp");
    std::erase_if(p.tensors, [](auto& t) { return t.name == "rope_freqs.weight"; });  // zeros are none
    const HolesDir dir;
    const DrafterFile file = must(DrafterFile::open(write_header(p, dir, "mtp.gguf")));
    const MtpCfg c = must(mtp_config(file, config(row.preset)));
    std::vector<int> donors;
    for (const LayerCfg& l : c.body.layer) donors.push_back(l.kv_source);
    EXPECT_EQ(donors, row.donors) << row.preset;
    // The same assistant beside the other target has another width, and says so.
    const auto other = mtp_config(file, config(row.preset == std::string("31b") ? "26b-a4b" : "31b"));
    ASSERT_FALSE(other);
    EXPECT_NE(other.error().message().find("width of the target"), std::string::npos) << other.error().message();
  }
  // Of a target whose last layers share K/V: the last that have some of their own.
  const struct {
    const char* preset;
    std::vector<int> donors;
  } edge[] = {{"e4b", {22, 22, 22, 23}}, {"e2b", {13, 13, 13, 14}}};
  for (const auto& row : edge) {
    const ModelCfg target = config(row.preset);
    SynthPlan p = shape("26b-a4b-mtp");
    std::erase_if(p.tensors, [](auto& t) { return t.name == "rope_freqs.weight"; });
    set("gemma4-assistant.embedding_length_out", int64_t(target.d_model))(p);
    set("gemma4-assistant.attention.head_count_kv", std::vector<int64_t>(4, target.layer[0].n_kv_head))(p);
    for (SynthTensor& t : p.tensors) {
      if (t.name == "nextn.pre_projection.weight") t.ne[0] = 2 * target.d_model;
      if (t.name == "nextn.post_projection.weight") t.ne[1] = target.d_model;
    }
    const HolesDir dir;
    const MtpCfg c = must(mtp_config(must(DrafterFile::open(write_header(p, dir, "mtp.gguf"))), target));
    std::vector<int> donors;
    for (const LayerCfg& l : c.body.layer) donors.push_back(l.kv_source);
    EXPECT_EQ(donors, row.donors) << row.preset;
  }
}

// Bytes of 32,768 tokens. Full layers: layers x heads x width x (K and V) x bytes x rows. Rings: window - 1 + margin
// rows.
TEST(RealShapes, BytesOfTheCacheAreTheFormulas) {
  const struct {
    const char* preset;
    int64_t full, rings;  // F16
  } table[] = {{"31b", 10LL * 4 * 512 * 4 * 32768, 50LL * 16 * 256 * 4 * (1023 + 64)},
               {"26b-a4b", 5LL * 2 * 512 * 4 * 32768, 25LL * 8 * 256 * 4 * (1023 + 64)},
               {"e4b", 4LL * 2 * 512 * 4 * 32768, 20LL * 2 * 256 * 4 * (511 + 64)},
               {"e2b", 3LL * 1 * 512 * 4 * 32768, 12LL * 1 * 256 * 4 * (511 + 64)}};
  for (const auto& row : table) {
    const ModelCfg m = config(row.preset);
    KvPlan p{.max_ctx = 32768, .max_step = 512, .margin = 64};
    EXPECT_EQ(kv_bytes(m, p).full, row.full) << row.preset;
    EXPECT_EQ(kv_bytes(m, p).rings, row.rings) << row.preset;
    p.k = p.v = KvType::kQ8_0;  // 34 bytes for 32
    EXPECT_EQ(kv_bytes(m, p).full, row.full / 64 * 34) << row.preset;
    p.k = p.v = KvType::kQ4_0, p.max_seq = 3;  // 18 bytes for 32
    EXPECT_EQ(kv_bytes(m, p).rings, 3 * (row.rings / 64 * 18)) << row.preset;
  }
}

// --- files that contradict themselves

// The last element of an array is gone, or is another one.
template <class T>
Edit cut(const std::string& key) {
  return [=](SynthPlan& p) {
    for (SynthMeta& m : p.meta)
      if (m.key == key) std::get<std::vector<T>>(m.v).pop_back();
  };
}
Edit last(const std::string& key, int64_t v) {
  return [=](SynthPlan& p) {
    for (SynthMeta& m : p.meta)
      if (m.key == key) std::get<std::vector<int64_t>>(m.v).back() = v;
  };
}

TEST(RealShapes, EveryRefusalOfAConfiguration) {
  const std::string a = "gemma4.attention.";
  const struct {
    const char* preset;
    Edit edit;
    std::string says;
  } table[] = {
      {"31b", set("general.architecture", std::string("llama")), "general.architecture: expected gemma4, found llama"},
      {"31b", set("general.architecture", std::string("dflash")), "this is a drafter: give it with --draft"},
      {"31b", drop("general.architecture"), "general.architecture"},
      {"31b", [](SynthPlan& p) { p.tensors[0].name = "token_embedding.weight"; },
       "token_embd.weight: expected the embedding"},
      {"31b", [](SynthPlan& p) { p.tensors[0].ne[0] = 5120; }, "token_embd.weight: expected [5376 x vocabulary]"},
      {"31b", drop("gemma4.block_count"), "gemma4.block_count"},
      {"31b", set("gemma4.block_count", int64_t(0)), "gemma4.block_count: expected an integer in [1, 1024], found 0"},
      {"31b", set("gemma4.block_count", int64_t(59)),
       "every layer that has tensors, 0 to 58, found the tensor blk.59."},
      {"31b", set("gemma4.context_length", int64_t(0)), "gemma4.context_length: expected an integer in [1, "},
      {"31b", set("gemma4.context_length", std::string("x")), "gemma4.context_length"},
      {"31b", set(a + "head_count", int64_t(2000)), a + "head_count: expected an integer in [1, 1024], found 2000"},
      {"31b", cut<int64_t>(a + "head_count_kv"), a + "head_count_kv"},
      {"31b", last(a + "head_count_kv", 0), a + "head_count_kv: expected an integer in [1, 1024], found 0"},
      {"31b", last(a + "head_count_kv", 3),
       a + "head_count_kv: expected a divisor of 32 query heads, found 3 in layer 59"},
      {"31b", cut<bool>(a + "sliding_window_pattern"), a + "sliding_window_pattern"},
      {"31b", set(a + "sliding_window_pattern", std::vector<int64_t>(60, 1)), a + "sliding_window_pattern"},
      {"31b", set(a + "sliding_window", int64_t(0)), a + "sliding_window: expected an integer in [1, "},
      {"31b", set(a + "value_length", int64_t(256)),
       a + "value_length: expected 512, the key length of its layers, found 256"},
      {"31b", set(a + "value_length_swa", int64_t(128)), a + "value_length_swa: expected 256, the key length"},
      {"31b", set("gemma4.rope.dimension_count", int64_t(128)), "gemma4.rope.dimension_count: expected 512"},
      {"31b", set("gemma4.rope.dimension_count_swa", int64_t(64)), "gemma4.rope.dimension_count_swa: expected 256"},
      {"31b",
       both(set("gemma4.rope.dimension_count_swa", int64_t(96)),
            both(set(a + "key_length_swa", int64_t(96)), set(a + "value_length_swa", int64_t(96)))),
       a + "key_length: expected 32, 64, 128, 256 or 512, found 96"},
      {"31b", set(a + "layer_norm_rms_epsilon", 2.0), "layer_norm_rms_epsilon: expected a number in [0, 1], found 2"},
      {"31b", set("gemma4.final_logit_softcapping", -1.0), "final_logit_softcapping: expected a number in [0, "},
      {"26b-a4b", set("gemma4.expert_used_count", int64_t(65)),
       "gemma4.expert_used_count: expected an integer in [1, 64], found 65"},
      {"26b-a4b", drop("gemma4.expert_feed_forward_length"), "gemma4.expert_feed_forward_length"},
      {"e2b", set(a + "shared_kv_layers", int64_t(36)),
       a + "shared_kv_layers: expected an integer in [0, 35], found 36"},
      {"e2b", set(a + "shared_kv_layers", int64_t(31)),
       a + "shared_kv_layers: expected a full layer with own K/V before layer 4"},
      {"e2b", set(a + "shared_kv_layers", int64_t(35)),
       a + "shared_kv_layers: expected a sliding layer with own K/V before layer 0"},
  };
  for (const auto& row : table) {
    const HolesDir dir;
    SynthPlan p = shape(row.preset);
    row.edit(p);
    const auto m = gemma4_config(must(GgufFile::open(write_header(p, dir, "model.gguf"))));
    ASSERT_FALSE(m) << row.says;
    EXPECT_NE(m.error().message().find(row.says), std::string::npos) << row.says << "\n" << m.error().message();
    EXPECT_TRUE(m.error().where.ends_with("model.gguf"));
  }
}

TEST(RealShapes, RefusalsOfRotaryDivisors) {
  const auto says = [](const Edit& edit, int layer) {
    const HolesDir dir;
    SynthPlan p = shape("31b");
    edit(p);
    const GgufFile file = must(GgufFile::open(write_header(p, dir, "model.gguf")));
    const auto freqs = gemma4_freqs(file, must(gemma4_config(file)), layer);
    return freqs ? "nothing" : freqs.error().message();
  };
  const auto divisors = [](const std::function<void(SynthTensor&)>& f) {
    return [f](SynthPlan& p) {
      for (SynthTensor& t : p.tensors)
        if (t.name == "rope_freqs.weight") f(t);
    };
  };
  const Edit none = [](SynthPlan&) {};
  EXPECT_NE(says(none, 5).find("rope_freqs.weight[0]: expected a positive divisor, found 0"), std::string::npos);
  EXPECT_EQ(says(none, 0), "nothing");  // a sliding layer has none
  EXPECT_NE(says(divisors([](auto& t) { t.type = DType::kF16; }), 5).find("expected F32 [256], half the key length"),
            std::string::npos);
  EXPECT_NE(says(divisors([](auto& t) { t.ne = {255}; }), 5).find("found F32 [255]"), std::string::npos);
  EXPECT_NE(says(set("gemma4.rope.freq_base", 1.0), 5).find("gemma4.rope.freq_base: expected a number in (1, 1e12)"),
            std::string::npos);
  EXPECT_NE(says(set("gemma4.rope.freq_base_swa", 1e13), 0).find("gemma4.rope.freq_base_swa"), std::string::npos);
}

// RoPE of the reference from the first to the millionth position against angles computed here, in long double: a
// quarter of a full layer's head rotates, all of a sliding one's.
TEST(RealShapes, AnglesAreRightAtAMillionTokens) {
  SynthPlan p = shape("31b");
  std::erase_if(p.tensors, [](auto& t) { return t.name == "rope_freqs.weight"; });
  const HolesDir dir;
  const GgufFile file = must(GgufFile::open(write_header(p, dir, "model.gguf")));
  const ModelCfg m = must(gemma4_config(file));
  const std::vector<int32_t> pos{0, 1, 1023, 131071, 262143, 1048575};
  for (const int layer : {0, 5}) {
    const int E = m.layer[size_t(layer)].head_dim, half = E / 2, rotated = layer == 5 ? half / 4 : half;
    const long double theta = layer == 5 ? 1e6L : 1e4L;
    CpuRef ref(1);
    ref.reserve({.max_tok = int(pos.size()), .max_cols = E});
    const auto freqs = ref.upload(std::span<const double>(must(gemma4_freqs(file, m, layer))));
    const std::vector<float> ones(size_t(E), 1.f);
    const auto gain = ref.upload(std::span<const float>(ones));
    auto x = ref.new_rows(int(pos.size()), E);
    for (size_t t = 0; t < pos.size(); ++t)
      for (int i = 0; i < E; ++i) x.row(int(t))[i] = i < half ? 1.f : 0.f;  // the angle's cosine and sine come out
    Step s;
    s.shape.n_tok = int(pos.size()), s.pos = pos.data();
    ref.head_norm_rope(x, gain, freqs, s, 0.f);
    for (size_t t = 0; t < pos.size(); ++t)
      for (int i = 0; i < half; ++i) {
        const long double angle = i < rotated ? pos[t] * std::pow(theta, -2.0L * i / E) : 0.0L;
        ASSERT_NEAR(x.row(int(t))[i], std::numbers::sqrt2 * double(std::cos(angle)), 1e-6) << pos[t] << " " << i;
        ASSERT_NEAR(x.row(int(t))[i + half], std::numbers::sqrt2 * double(std::sin(angle)), 1e-6) << pos[t] << " " << i;
      }
  }
}

// Rings by brute force: whatever the length, the window and the step, a row that a token of the step may see is where
// it was put, unless the step is longer than the margin and staged; one row less and some row is lost.
TEST(Ring, EveryGeometry) {
  for (int window = 1; window <= 9; ++window)
    for (int margin = 1; margin <= 6; ++margin)
      for (const int less : {0, 1}) {
        const KvPlan plan{.max_ctx = 1 << 20, .margin = margin};
        LayerCfg c;
        c.window = window;
        KvLayer l;
        l.window = window, l.margin = margin, l.cap = ring_rows(c, plan) - less;
        if (l.cap < 1) continue;
        int lost = 0;
        for (int start = 0; start <= 40; ++start)
          for (int n = 1; n <= margin; ++n) {
            EXPECT_FALSE(kv_staged(l, n));
            std::vector<int64_t> ring(size_t(l.cap), -1);
            for (int64_t row = 0; row < start + n; ++row)
              ring[size_t(kv_place(l, row))] = row;  // the step's rows, all of them
            for (int j = 0; j < n; ++j)              // each of its tokens sees a window that ends with itself
              for (int64_t row = std::max(0, start + j - window + 1); row <= start + j; ++row)
                lost += ring[size_t(kv_place(l, row))] != row;
          }
        EXPECT_EQ(lost > 0, less > 0) << "window " << window << " margin " << margin << " less " << less;
        EXPECT_TRUE(kv_staged(l, margin + 1));
      }
}

}  // namespace
}  // namespace facet::test
