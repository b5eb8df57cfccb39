// mmproj files: what other converters write, what misleads, what is refused.
#include "model/mmproj.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/half.h"
#include "formats/synth.h"
#include "support/encoder_bench.h"
#include "support/rewrite_gguf.h"

namespace facet::test {
namespace {

namespace fs = std::filesystem;

std::string source(const std::string& name) { return data_path("media/" + name + "/mmproj-BF16.gguf"); }

class Mmproj : public testing::Test {
 protected:
  void SetUp() override { fs::create_directories(folder_); }
  void TearDown() override { fs::remove_all(folder_); }
  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  std::string rewritten(const std::string& from, const Rewrite& r, const std::string& name = "mmproj.gguf") const {
    rewrite_gguf(source(from), path(name), r);
    return path(name);
  }
  // As a file is opened and its weights are bound: the first error, or "".
  static std::string error_of(const std::string& path, std::vector<std::string>* left_out = nullptr) {
    auto f = MmprojFile::open(path);
    if (!f) return f.error().message();
    CpuRef b;
    if (f->vision())
      if (auto w = bind_vision(b, *f, left_out); !w) return w.error().message();
    if (f->audio())
      if (auto w = bind_audio(b, *f, left_out); !w) return w.error().message();
    return "";
  }
  static std::vector<float> soft(const std::string& path) {
    VisionBench<CpuRef> v(must(MmprojFile::open(path)), 64);
    const Picture p[] = {golden_picture("grid")};
    return v.soft(p);
  }
  static std::vector<float> heard(const std::string& path) {
    AudioBench<CpuRef> a(must(MmprojFile::open(path)), 128);
    return a.soft(media_case("edge").goldens().values<float>("sound.mel"));
  }
  const fs::path folder_ = fs::temp_directory_path() / ("facet-mmproj-" + std::to_string(::getpid()) + "-" +
                                                        testing::UnitTest::GetInstance()->current_test_info()->name());
};

#define EXPECT_SAYS(error, part) EXPECT_NE((error).find(part), std::string::npos) << (error)

TEST_F(Mmproj, FourProjectors) {
  const auto large = must(MmprojFile::open(source("large"))), edge = must(MmprojFile::open(source("edge"))),
             unified = must(MmprojFile::open(source("unified")));
  EXPECT_STREQ(large.vision()->projector(), "gemma4v");
  EXPECT_TRUE(large.vision()->standardizes && !large.vision()->has_clips && !large.audio());
  EXPECT_EQ(large.vision()->head_dim, 24);
  EXPECT_STREQ(edge.audio()->projector(), "gemma4a");
  EXPECT_TRUE(edge.vision()->has_clips && !edge.vision()->standardizes);
  EXPECT_STREQ(unified.vision()->projector(), "gemma4uv");
  EXPECT_STREQ(unified.audio()->projector(), "gemma4ua");
  EXPECT_EQ(unified.vision()->patch_cols(), 6912);
  EXPECT_EQ(unified.audio()->frame, 640);
  for (const auto* f : {&large, &edge, &unified}) EXPECT_EQ(f->text_width(), 32);
  EXPECT_EQ(edge.audio()->n_token(2999), 750);
  EXPECT_EQ(edge.audio()->n_token(1), 1);
}

TEST_F(Mmproj, UnknownProjectorsAreNamed) {
  for (const auto& [key, other] :
       {std::pair{"clip.vision.projector_type", "gemma3"}, {"clip.audio.projector_type", "gemma3na"}}) {
    const std::string e = error_of(
        rewritten("edge", {.key = without({key}), .more = [k = key, o = other](GgufWriter& w) { w.add(k, o); }}));
    EXPECT_SAYS(e, key);
    EXPECT_SAYS(e, other);
  }
}
TEST_F(Mmproj, OneEncoderUnderTheOldKey) {
  const std::string p = rewritten("large", {.key = without({"clip.vision.projector_type"}),
                                            .more = [](GgufWriter& w) { w.add("clip.projector_type", "gemma4v"); }});
  EXPECT_EQ(error_of(p), "");
  EXPECT_EQ(soft(p), soft(source("large")));
}
TEST_F(Mmproj, NoKeyTellsGelu) {  // absent or not, it is the tanh form
  const std::string p =
      rewritten("large", {.more = [](GgufWriter& w) { w.add("clip.use_gelu", false), w.add("clip.use_silu", true); }});
  EXPECT_EQ(soft(p), soft(source("large")));
}
TEST_F(Mmproj, EpsilonOfSoundIsNotBelieved) {
  const std::string key = "clip.audio.attention.layer_norm_epsilon";
  const std::string p = rewritten("edge", {.key = without({key}), .more = [&](GgufWriter& w) { w.add(key, 0.5); }});
  EXPECT_EQ(heard(p), heard(source("edge")));
}
TEST_F(Mmproj, TextModelsAndOthersAreRefused) {
  EXPECT_SAYS(error_of(data_path("fixtures/edge/model.gguf")), "expected clip, found gemma4");
  EXPECT_SAYS(error_of(rewritten("large", {.key = without({"general.architecture"}),
                                           .more = [](GgufWriter& w) { w.add("general.architecture", "llava"); }})),
              "found llava");
  EXPECT_SAYS(error_of(rewritten("large", {.key = without({"clip.has_vision_encoder", "clip.vision.projector_type"})})),
              "found none");
}
TEST_F(Mmproj, WidthsOfAnotherModelAreRefused) {
  ModelCfg m;
  m.d_model = 2560;
  const auto f = must(MmprojFile::open(source("large")));
  const Status ok = check_mmproj(f, "model.gguf", m);
  ASSERT_FALSE(ok);
  EXPECT_SAYS(ok.error().message(), "expected 2560, the width of model.gguf, found 32");
}
TEST_F(Mmproj, MetadataOutOfBoundsIsRefused) {
  for (const auto& [key, value] : {std::pair<const char*, int64_t>{"clip.vision.block_count", 0},
                                   {"clip.vision.block_count", 1 << 20},
                                   {"clip.vision.attention.head_count", 5},
                                   {"clip.vision.attention.head_count", 0},
                                   {"clip.vision.embedding_length", 1 << 30},
                                   {"clip.vision.patch_size", 0},
                                   {"clip.vision.projection_dim", 0},
                                   {"clip.vision.block_count", 3},
                                   {"clip.audio.attention.head_count", 3},
                                   {"clip.audio.block_count", 1025},
                                   {"clip.audio.num_mel_bins", 126},
                                   {"clip.audio.projection_dim", 64}})
    EXPECT_NE(error_of(rewritten(
                  "edge", {.key = without({key}), .more = [&, k = key, v = value](GgufWriter& w) { w.add(k, v); }})),
              "")
        << key << " " << value;
}

TEST_F(Mmproj, EveryTensorIsMissed) {
  for (const char* name : {"large", "edge", "unified"}) {
    const auto in = must(GgufFile::open(source(name)));
    for (const TensorView& t : in.tensors()) {
      if (t.name.ends_with("_min") || t.name.ends_with("_max")) continue;  // no clip
      const auto gone = [&](const std::string& n) { return n == t.name ? std::string() : n; };
      EXPECT_SAYS(error_of(rewritten(name, {.tensor = gone})), t.name);
    }
  }
}
TEST_F(Mmproj, EveryShapeIsChecked) {
  for (const char* name : {"large", "edge", "unified"}) {
    const auto in = must(GgufFile::open(source(name)));
    for (const TensorView& t : in.tensors()) {
      std::vector<int64_t> ne(t.ne.begin(), t.ne.begin() + std::max(1, t.n_dims));
      ne[0] += 1;
      const auto gone = [&](const std::string& n) { return n == t.name ? std::string() : n; };
      EXPECT_SAYS(error_of(rewritten(name, {.tensor = gone, .extra = {{t.name, t.type, ne}}})), t.name);
    }
  }
}
TEST_F(Mmproj, TransposedProjectionIsRefused) {  // as another model's tensor of this name lies
  const auto in = must(GgufFile::open(source("large")));
  const TensorView& t = *in.find("mm.input_projection.weight");
  const auto gone = [&](const std::string& n) { return n == t.name ? std::string() : n; };
  EXPECT_SAYS(error_of(rewritten("large", {.tensor = gone, .extra = {{t.name, t.type, {t.ne[1], t.ne[0]}}}})),
              "[48 x 32]");
}
TEST_F(Mmproj, BiasesAreRefusedOthersAreNoted) {
  EXPECT_SAYS(error_of(rewritten("edge", {.extra = {{"v.blk.0.attn_q.bias", DType::kF32, {32}}}})),
              "v.blk.0.attn_q.bias");
  EXPECT_SAYS(error_of(rewritten("edge", {.extra = {{"a.blk.1.per_dim_k_scale.weight", DType::kF32, {16}}}})),
              "per_dim_k_scale");
  std::vector<std::string> left_out;
  EXPECT_EQ(error_of(rewritten("edge", {.extra = {{"v.image_newline", DType::kF32, {32}}}}), &left_out), "");
  EXPECT_EQ(left_out, std::vector<std::string>{"v.image_newline"});
}
TEST_F(Mmproj, ClipsAreOrdered) {
  const auto gone = [](const std::string& n) { return n == "v.blk.0.attn_q.input_max" ? std::string() : n; };
  EXPECT_SAYS(error_of(rewritten("edge", {.tensor = gone, .extra = {{"v.blk.0.attn_q.input_max", DType::kF32, {2}}}})),
              "v.blk.0.attn_q.input_max: expected F32 [1]");
  const auto swapped = [](const std::string& n) {
    return n == "v.blk.0.attn_q.input_max"   ? "v.blk.0.attn_q.input_min"
           : n == "v.blk.0.attn_q.input_min" ? "v.blk.0.attn_q.input_max"
                                             : n;
  };
  EXPECT_SAYS(error_of(rewritten("edge", {.tensor = swapped})), "v.blk.0.attn_q.input_min: expected at most input_max");
}
TEST_F(Mmproj, ScaleOfDimensionsIsAboveZero) {  // a file whose softplus was never applied
  const std::string p = rewritten("edge", {.bytes = [](const TensorView& t) {
                                    std::vector<std::byte> b(t.data.begin(), t.data.end());
                                    if (t.name.ends_with("per_dim_scale.weight"))
                                      std::fill(b.begin(), b.end(), std::byte{0});
                                    return b;
                                  }});
  EXPECT_SAYS(error_of(p), "a.blk.0.per_dim_scale.weight[0]: expected a value above 0");
}
TEST_F(Mmproj, PatchNormsCountedFromZero) {
  const auto name = [](const std::string& n) {
    std::string s = n;
    if (n.starts_with("v.patch_norm.")) --s[13];
    return s;
  };
  EXPECT_EQ(soft(rewritten("unified", {.tensor = name})), soft(source("unified")));
}

// The same weights in another type. F32 holds those of BF16.
std::string as_type(const std::string& from, const std::string& to, DType type) {
  const auto in = must(GgufFile::open(from));
  GgufWriter w;
  for (const auto& [k, v] : in.meta()) w.add_raw(k, v);
  for (const TensorView& t : in.tensors())
    w.add_tensor(t.name, t.n_dims >= 2 ? type : t.type,
                 std::vector<int64_t>(t.ne.begin(), t.ne.begin() + std::max(1, t.n_dims)));
  must(w.begin(to));
  for (const TensorView& t : in.tensors()) {
    if (t.n_dims < 2) {
      must(w.write(t.data));
      continue;
    }
    std::vector<float> f(size_t(t.n_elements()));
    dequantize_row(t.type, t.data.data(), f.data(), t.n_elements());
    std::vector<uint16_t> h(f.size());
    for (size_t i = 0; i < f.size(); ++i) h[i] = f32_to_f16(f[i]);
    must(w.write(type == DType::kF32 ? std::as_bytes(std::span<const float>(f))
                                     : std::as_bytes(std::span<const uint16_t>(h))));
  }
  must(w.finish());
  return to;
}
TEST_F(Mmproj, TypesOfWeights) {
  EXPECT_EQ(soft(as_type(source("large"), path("f32.gguf"), DType::kF32)), soft(source("large")));
  EXPECT_EQ(heard(as_type(source("edge"), path("f32e.gguf"), DType::kF32)), heard(source("edge")));
  EXPECT_EQ(soft(as_type(source("unified"), path("f16.gguf"), DType::kF16)), soft(source("unified")));
}

// Ollama's file: the text model's keys and tensors, encoders under other names, clips of pictures in one tensor.
TEST_F(Mmproj, EncodersInAFileOfOllama) {
  const auto in = must(GgufFile::open(source("edge")));
  auto name = [](const std::string& n) -> std::string {
    if (n == "a.input_projection.weight") return "a.pre_encode.out.weight";
    if (n == "a.pre_encode.out.weight") return "mm.a.fc.weight";
    if (n == "a.pre_encode.out.bias") return "mm.a.fc.bias";
    if (!n.starts_with("a.blk.")) return n;
    const size_t dot = n.find('.', 6) + 1;
    for (const auto& [mine, theirs] : {std::pair{"attn_pre_norm.weight", "ln1.weight"},
                                       {"attn_post_norm.weight", "ln2.weight"},
                                       {"ln2.weight", "layer_pre_norm.weight"},
                                       {"attn_k_rel.weight", "linear_pos.weight"}})
      if (n.substr(dot) == mine) return n.substr(0, dot) + theirs;
    return n;
  };
  std::vector<float> clamp;
  for (int l = 0; l < 2; ++l)
    for (const char* w : {"attn_q", "attn_k", "attn_v", "attn_out", "ffn_gate", "ffn_up", "ffn_down"})
      for (const char* end : {"input_min", "input_max", "output_min", "output_max"}) {
        float v = 0;
        const TensorView* t = in.find("v.blk." + std::to_string(l) + "." + w + "." + end);
        dequantize_row(DType::kF32, t->data.data(), &v, 1);
        clamp.push_back(v);
      }
  clamp.insert(clamp.end(), 4, 0.f);  // the projector's: none
  auto is_clip = [](const std::string& n) {
    return n.starts_with("v.") && (n.ends_with("_min") || n.ends_with("_max"));
  };
  GgufWriter w;
  w.add("general.architecture", "gemma4");
  w.add("gemma4.embedding_length", 32);
  for (const auto& [kind, values] :
       {std::pair{"vision", std::array{2, 32, 48, 2}}, {"audio", std::array{2, 32, 128, 2}}}) {
    const std::string p = std::string("gemma4.") + kind + ".";
    w.add(p + "block_count", values[0]), w.add(p + "embedding_length", values[1]);
    w.add(p + "feed_forward_length", values[2]), w.add(p + "attention.head_count", values[3]);
  }
  w.add_tensor("token_embd.weight", DType::kF32, {32, 2});
  w.add_tensor("v.clamp_data", DType::kF32, {int64_t(clamp.size())});
  for (const TensorView& t : in.tensors())
    if (!is_clip(t.name))
      w.add_tensor(name(t.name), t.type, std::vector<int64_t>(t.ne.begin(), t.ne.begin() + std::max(1, t.n_dims)));
  must(w.begin(path("ollama.gguf")));
  must(w.write(std::vector<std::byte>(256)));
  must(w.write(std::as_bytes(std::span<const float>(clamp))));
  for (const TensorView& t : in.tensors())
    if (!is_clip(t.name)) must(w.write(t.data));
  must(w.finish());
  const auto f = must(MmprojFile::open(path("ollama.gguf")));
  EXPECT_TRUE(f.is_of_ollama() && f.vision()->has_clips);
  EXPECT_EQ(f.text_width(), 32);
  EXPECT_EQ(soft(path("ollama.gguf")), soft(source("edge")));
  EXPECT_EQ(heard(path("ollama.gguf")), heard(source("edge")));
}

TEST_F(Mmproj, IsFoundBesideTheModelByWhatItHolds) {
  ModelCfg m;
  m.d_model = 32;
  const std::string model = path("gemma-4-e4b-it-Q4_K_M.gguf");
  fs::copy(data_path("fixtures/edge/model.gguf"), model);
  std::vector<std::string> notes;
  auto found = [&](const std::string& option = "auto") { return must(find_mmproj(option, model, m, &notes)); };
  EXPECT_EQ(found(), "");
  fs::copy(source("edge"), path("other.gguf"));  // the name says nothing
  EXPECT_EQ(found(), path("other.gguf"));
  fs::copy(source("edge"), path("mmproj-gemma-4-e2b-it-BF16.gguf"));
  fs::copy(source("edge"), path("mmproj-gemma-4-e4b-it-BF16.gguf"));
  EXPECT_EQ(found(), path("mmproj-gemma-4-e4b-it-BF16.gguf"));
  EXPECT_EQ(found("none"), "");
  EXPECT_EQ(found(path("other.gguf")), path("other.gguf"));
  EXPECT_TRUE(notes.empty());
  std::ofstream(path("mmproj-gemma-4-e4b-it-F16.gguf")) << "GGUF";  // a download that broke off
  EXPECT_EQ(found(), path("mmproj-gemma-4-e4b-it-BF16.gguf"));
  m.d_model = 64;
  EXPECT_EQ(found(), "");
  EXPECT_EQ(notes.size(), 3u);
  EXPECT_FALSE(find_mmproj(path("other.gguf"), model, m));
  EXPECT_FALSE(find_mmproj(path("gone.gguf"), model, m));
}

// As a repository of a hub has it: models in folders, one mmproj file for all of them.
TEST_F(Mmproj, IsFoundInTheFoldersAboveUpToTheRoot) {
  ModelCfg m;
  m.d_model = 32;
  fs::create_directories(path("u/r/BF16/deep"));
  const std::string model = path("u/r/BF16/deep/g-BF16.gguf"), root = path("u/r");
  fs::copy(data_path("fixtures/edge/model.gguf"), model);
  fs::copy(source("edge"), path("u/mmproj-F16.gguf"));  // of another repository
  EXPECT_EQ(must(find_mmproj("auto", model, m, nullptr, root)), "");
  fs::copy(source("edge"), path("u/r/mmproj-F16.gguf"));
  EXPECT_EQ(must(find_mmproj("auto", model, m, nullptr, root)), path("u/r/mmproj-F16.gguf"));
  EXPECT_EQ(must(find_mmproj("auto", model, m)), "");
  EXPECT_EQ(must(find_mmproj("auto", model, m, nullptr, path("u/r/BF"))), "");  // the name of no folder above
}

TEST_F(Mmproj, WrittenFilesOfPublishedShapesAreRead) {
  const auto preset_width = {std::pair{"e2b", 1536}, {"e4b", 2560}, {"12b", 3840}, {"26b", 2816}, {"31b", 5376}};
  for (const auto& [preset, width] : preset_width)
    for (const std::string_view type : synth_mmproj_types()) {
      const auto plan = must(synth_mmproj_plan(preset, type));
      EXPECT_GT(synth_bytes(plan), 100u << 20) << preset;
    }
  // Bytes of published files: E2B F16 986 MB, 12B BF16 175 MB.
  EXPECT_NEAR(double(synth_bytes(must(synth_mmproj_plan("e2b", "F16")))), 986e6, 3e6);
  EXPECT_NEAR(double(synth_bytes(must(synth_mmproj_plan("12b", "BF16")))), 175e6, 1e6);
}

}  // namespace
}  // namespace facet::test
