// What files of DFlash's relatives say and leave open, which rule decides, and what is refused by name.
#include <limits>

#include "model/drafter_convert.h"
#include "model/drafter_rules.h"
#include "support/drafter_refusal.h"
#include "support/random_drafter.h"

namespace facet::test {
namespace {

ModelCfg target() {
  const auto golden = must(SafetensorsFile::open(data_path("drafters/mtp/golden.safetensors")));
  return StandIn<CpuRef>(golden, exact_plan()).m;
}
bool has(const std::string& text, const std::string& part) { return text.find(part) != text.npos; }
bool says(const DrafterFile& f, const std::string& part) {
  for (const std::string& line : describe_drafter(f))
    if (has(line, part)) return true;
  return false;
}
DflashCfg config(const RandomDrafter& file) {
  return must(dflash_config(must(DrafterFile::open(file.path())), target()));
}

// A plain DFlash drafter of speculators: DSpark's without its heads.
std::unique_ptr<RandomDrafter> plain_of_speculators() {
  auto file = std::make_unique<RandomDrafter>("dspark", 128, [](const std::string& name, std::vector<float>&) {
    return !name.starts_with("markov") && !name.starts_with("confidence");
  });
  file->edit("\"speculators_model_type\": \"dspark\"", "\"speculators_model_type\": \"dflash\"");
  file->edit("\"markov_rank\": 16", "\"markov_rank\": 0");
  return file;
}

TEST(DrafterRules, EmbeddingsAndSoftcapByTrainer) {
  const auto speculators = plain_of_speculators();
  EXPECT_EQ(config(*speculators).body.embed_scale, 1.f);
  EXPECT_EQ(config(*speculators).body.softcap, 0.f);
  const RandomDrafter deep_spec("dspark_gemma");
  EXPECT_EQ(config(deep_spec).body.embed_scale, 8.f);
  EXPECT_EQ(config(deep_spec).body.softcap, 30.f);
  const auto authors = must(DrafterFile::open(data_path("drafters/dflash")));
  EXPECT_EQ(must(dflash_config(authors, target())).body.embed_scale, 8.f);
  EXPECT_TRUE(says(authors, "embedding scale: the model's (nothing says otherwise)"));
  EXPECT_TRUE(says(must(DrafterFile::open(speculators->path())), "embedding scale: 1 (trained by speculators)"));

  // The file's own key, and then the option, overrule the trainer.
  speculators->edit("\"block_size\"",
                    "\"input_embedding_scale\": 3.5, \"final_logit_softcapping\": 20.0, \"block_size\"");
  EXPECT_EQ(config(*speculators).body.embed_scale, 3.5f);
  EXPECT_EQ(config(*speculators).body.softcap, 20.f);
  auto asked = must(DrafterFile::open(speculators->path()));
  EXPECT_TRUE(says(asked, "embedding scale: 3.5 (the file's own key)"));
  asked.set_embedding_scale(8);
  EXPECT_EQ(must(dflash_config(asked, target())).body.embed_scale, 8.f);
  EXPECT_TRUE(says(asked, "embedding scale: 8 (--draft-embedding-scale)"));
}

TEST(DrafterRules, AlignmentByCountThenKeyThenTrainer) {
  RandomDrafter file("dspark");
  EXPECT_FALSE(config(file).from_anchor);
  EXPECT_EQ(config(file).max_draft(), 5);
  EXPECT_TRUE(says(must(DrafterFile::open(file.path())),
                   "5 from a block of 6: slot i is about the token at its position "
                   "(5 drafts from a block of 6)"));
  file.edit("\"sample_from_anchor\": false", "\"sample_from_anchor\": true");
  EXPECT_TRUE(
      has(drafter_refusal(file.path(), target()), "sample_from_anchor: expected false, as a block of 6 with 5"));
  file.edit("\"speculative_tokens\": 5", "\"speculative_tokens\": 3");
  EXPECT_TRUE(config(file).from_anchor) << "the count says neither, and the key decides";
  EXPECT_EQ(config(file).max_draft(), 6);
  file.edit("\"sample_from_anchor\": true", "\"other\": 1");
  EXPECT_FALSE(config(file).from_anchor) << "speculators without a word";
  EXPECT_TRUE(config(RandomDrafter("dspark_gemma")).from_anchor) << "DeepSpec without a word";
}

TEST(DrafterRules, SlidingLayersInsideABlock) {
  RandomDrafter file("dspark");
  EXPECT_TRUE(config(file).body.layer[0].causal_block);
  EXPECT_FALSE(config(file).body.layer[1].causal_block) << "a full layer";
  file.edit("\"sliding_window_non_causal\": false", "\"sliding_window_non_causal\": true");
  EXPECT_FALSE(config(file).body.layer[0].causal_block);
  EXPECT_TRUE(says(must(DrafterFile::open(file.path())), "bidirectional inside the block (sliding_window_non_causal)"));
  file.edit("\"sliding_window_non_causal\": true", "\"other\": 1");
  EXPECT_TRUE(config(file).body.layer[0].causal_block);
  EXPECT_FALSE(config(RandomDrafter("dflash2")).body.layer[0].causal_block) << "DFlash 2 without a word";
}

// A GGUF that facet writes says in so many words what the source's trainer decided.
TEST(DrafterRules, AConvertedFileSaysTheSame) {
  const std::string out =
      (std::filesystem::temp_directory_path() / fmt::format("facet-block-{}.gguf", getpid())).string();
  for (const char* family : {"dspark", "dspark_gemma", "dflash2"}) {
    const RandomDrafter file(family);
    const DflashCfg want = config(file);
    must(convert_drafter(must(DrafterFile::open(file.path())), nullptr, out));
    const DflashCfg got = must(dflash_config(must(DrafterFile::open(out)), target()));
    EXPECT_EQ(got.body.embed_scale, want.body.embed_scale) << family;
    EXPECT_EQ(got.body.softcap, want.body.softcap) << family;
    EXPECT_EQ(got.body.act, want.body.act) << family;
    EXPECT_EQ(got.from_anchor, want.from_anchor) << family;
    EXPECT_EQ(got.block, want.block) << family;
    EXPECT_EQ(got.taps, want.taps) << family;
    EXPECT_EQ(got.freqs, want.freqs) << family;
    EXPECT_EQ(got.id_map, want.id_map) << family;
    EXPECT_EQ(got.markov.rank, want.markov.rank) << family;
    EXPECT_EQ(got.markov.hidden, want.markov.hidden) << family;
    EXPECT_EQ(got.markov.bias, want.markov.bias) << family;
    EXPECT_EQ(got.selector.rank, want.selector.rank) << family;
    EXPECT_EQ(got.selector.top_k, want.selector.top_k) << family;
    EXPECT_EQ(got.conv_group, want.conv_group) << family;
    EXPECT_EQ(got.whole_block(), want.whole_block()) << family;
    for (size_t l = 0; l < want.body.layer.size(); ++l) {
      EXPECT_EQ(got.body.layer[l].causal_block, want.body.layer[l].causal_block) << family;
      EXPECT_EQ(got.body.layer[l].window, want.body.layer[l].window) << family;
    }
    EXPECT_EQ(drafter_refusal(out, target()), "") << family;
  }
  std::filesystem::remove(out);
}

TEST(DrafterRefusals, HeadsIdsAndNumbers) {
  const ModelCfg m = target();
  for (const char* family : {"dspark", "dspark_gemma", "dflash2"})
    EXPECT_EQ(drafter_refusal(RandomDrafter(family).path(), m), "") << family;
  auto refused = [&](const std::string& family, const char* find, const char* put, const char* said) {
    RandomDrafter file(family);
    file.edit(find, put);
    const std::string message = drafter_refusal(file.path(), m);
    EXPECT_TRUE(has(message, said)) << said << " in: " << message;
  };
  refused("dspark", "\"vanilla\"", "\"gated\"", "markov_head_type gated");
  refused("dspark_gemma", "\"vanilla\"", "\"rnn\"", "markov_head_type rnn");
  refused("dspark", "\"markov_rank\": 16", "\"markov_rank\": 32",
          "markov_rank: expected 16, as the tensors have, found 32");
  refused("dspark_gemma", "gelu_pytorch_tanh", "gelu", "hidden_activation: expected gelu_pytorch_tanh");
  refused("dspark_gemma", "\"proportional\"", "\"yarn\"", "yarn");
  refused("dflash2", "\"selector_top_k\": 8", "\"selector_top_k\": 65",
          "selector_top_k: expected an integer in [1, 64]");
  refused("dflash2", "\"conv_group_size\": 16", "\"conv_group_size\": 24", "a multiple of 24");
  refused("dflash2", "\"conv_kernel_size\": 2", "\"conv_kernel_size\": 3", "conv_kernel_size");

  const RandomDrafter nan("dspark", 128, [](const std::string& name, std::vector<float>& v) {
    if (name == "confidence_head.proj.weight") v[70] = std::numeric_limits<float>::quiet_NaN();
    return true;
  });
  EXPECT_TRUE(has(drafter_refusal(nan.path(), m), "conf_proj.weight: expected numbers, found nan"));
  const RandomDrafter other("dspark", 256);
  EXPECT_TRUE(has(drafter_refusal(other.path(), m), "d2t: expected tokens in [0, 128), found"));
  for (const char* part : {"markov_head.markov_w2.weight", "candidate_selector.successor_codebook"})
    for (const char* family : {"dspark", "dflash2"}) {
      bool left_out = false;
      const RandomDrafter half(family, 128, [&](const std::string& name, std::vector<float>&) {
        left_out |= name == part;
        return name != part;
      });
      EXPECT_TRUE(!left_out || !drafter_refusal(half.path(), m).empty()) << part;
    }
  // A confidence that becomes no number while it runs is none at all.
  MarkovCfg head{.rank = 1, .hidden = {1, 1}, .markov = {1}};
  const float bad[] = {1, std::numeric_limits<float>::infinity()}, none[] = {-std::numeric_limits<float>::infinity()};
  EXPECT_EQ(confidence_of(head, bad, none), 0.f);
}

TEST(DrafterRefusals, Eagle3) {
  const ModelCfg m = target();
  auto file = [](bool fc_norm, bool input_norm) {
    return std::make_unique<RandomDrafter>("eagle3", 128, [=](const std::string& name, std::vector<float>&) {
      return name.starts_with("fc_norm") ? fc_norm : name.starts_with("input_norm") ? input_norm : true;
    });
  };
  EXPECT_EQ(drafter_refusal(file(false, false)->path(), m), "");
  EXPECT_TRUE(has(drafter_refusal(file(true, false)->path(), m), "fc_norm.0.weight: expected the parts of an EAGLE-3"));
  EXPECT_TRUE(has(drafter_refusal(file(false, true)->path(), m), "input_norm.weight: expected the parts"));
  auto refused = [&](const char* find, const char* put, const char* said) {
    const auto f = file(false, false);
    f->edit(find, put);
    const std::string message = drafter_refusal(f->path(), m);
    EXPECT_TRUE(has(message, said)) << said << " in: " << message;
  };
  refused("\"norm_before_fc\": false", "\"norm_before_fc\": true", "input_norm.weight");
  refused("\"rope_theta\": 10000.0", "\"other\": 1", "rope_theta: expected a number");
  refused("\"head_dim\": 32", "\"head_dim\": 48", "head_dim");
  refused("\"num_hidden_layers\": 1", "\"num_hidden_layers\": 2", "layers");
}

// llama.cpp writes the two rows of a RoPE pair side by side: read back they are half a head apart, and ids are absolute.
TEST(Eagle3File, GgufHasInterleavedPairs) {
  const std::string out =
      (std::filesystem::temp_directory_path() / fmt::format("facet-eagle3-{}.gguf", getpid())).string();
  const RandomDrafter source("eagle3", 128, [](const std::string& name, std::vector<float>&) {
    return name.find("norm.") == name.npos ||
           (name.find("fc_norm") == name.npos && name.find("input_norm") == name.npos &&
            name.find("q_norm") == name.npos && name.find("k_norm") == name.npos);
  });
  const auto want = must(DrafterFile::open(source.path()));
  GgufWriter w;
  w.add("general.architecture", "eagle3");
  for (const auto& [key, value] : std::vector<std::pair<std::string, int64_t>>{{"block_count", 1},
                                                                               {"embedding_length", 64},
                                                                               {"feed_forward_length", 64},
                                                                               {"attention.head_count", 4},
                                                                               {"attention.key_length", 32},
                                                                               {"target_hidden_size", 64}})
    w.add("eagle3." + key, value);
  w.add("eagle3.rope.freq_base", 1e4);
  w.add("eagle3.norm_before_residual", true);
  w.add("eagle3.target_layers", std::vector<int64_t>{1, 3, 4});
  std::vector<std::vector<std::byte>> data;
  for (const TensorView& t : want.tensors()) {
    w.add_tensor(t.name, t.type, {t.ne.begin(), t.ne.begin() + std::max(1, t.n_dims)});
    auto& to = data.emplace_back(t.data.begin(), t.data.end());
    if (t.name == "d2t")
      for (int64_t i = 0; i < 48; ++i) {
        const int64_t id = i * 128 / 48;
        std::memcpy(to.data() + 8 * i, &id, 8);
      }
    if (t.name == "blk.0.attn_q.weight" || t.name == "blk.0.attn_k.weight") {
      const size_t row = t.data.size() / size_t(t.ne[1]);
      for (size_t r = 0; r < size_t(t.ne[1]); ++r) {
        const size_t i = r % 32, from = r / 32 * 32 + (i % 2 ? 16 + i / 2 : i / 2);
        std::memcpy(to.data() + r * row, t.data.data() + from * row, row);
      }
    }
  }
  must(w.begin(out));
  for (const auto& bytes : data) must(w.write(bytes));
  must(w.finish());
  const auto got = must(DrafterFile::open(out));
  const Eagle3Cfg a = must(eagle3_config(want, target())), b = must(eagle3_config(got, target()));
  EXPECT_EQ(a.id_map, b.id_map);
  EXPECT_EQ(a.taps, b.taps);
  EXPECT_EQ(a.freqs, b.freqs);
  EXPECT_EQ(b.norm_before_residual, true);
  for (const TensorView& t : want.tensors())
    EXPECT_TRUE(t.name == "d2t" || std::ranges::equal(t.data, got.find(t.name)->data)) << t.name;
  std::filesystem::remove(out);
}

}  // namespace
}  // namespace facet::test
