// Logits, chains and confidences of drafters that are DFlash with more: tests/data/drafters
// (tools/make_block_fixtures.py).
#include "backend/cpu/cpu_fast.h"
#include "spec/eagle3.h"
#include "support/broken.h"
#include "support/random_drafter.h"

namespace facet::test {
namespace {

struct Drafted {
  std::vector<float> base = {}, steps = {};  // logits of the block, and those that tokens were chosen from
  Draft draft = {};
};
struct Spoil {
  int shift = 0;  // features of another token
  std::function<void(DflashCfg&)> cfg = {};
  std::function<void(RandomDrafter&)> file = {};
};

// What is drafted behind 9 and behind 22 tokens, the second from the state that the first round left.
template <class B>
std::vector<Drafted> rounds(RandomDrafter& file, const Spoil& spoil = {}, int max_draft = 99) {
  if (spoil.file) spoil.file(file);
  const auto golden = file.golden();
  const auto ids = random_tokens("golden.ids", RandomDrafter::kTokens, 128);
  StandIn<B> t(golden, exact_plan());
  const auto opened = must(DrafterFile::open(file.path()));
  DflashCfg cfg = must(dflash_config(opened, t.m));
  if (spoil.cfg) spoil.cfg(cfg);
  auto d = must(Dflash<B>::open(opened, std::move(cfg), t.view()));
  const auto features = t.rows_of("features", 192);
  std::vector<Drafted> all;
  for (const int at : {9, 22}) {
    for (int from = d->held(0); from < at;) {
      const Committed rows{.position = from, .row = from + spoil.shift, .n = std::min(5, at - from)};
      d->absorb({&rows, 1}, {.taps = features});
      from += rows.n;
    }
    Drafted got{.draft = {.position = at, .max_draft = max_draft, .n_top = 1, .token = {ids[size_t(at)]}}};
    got.base = t.b.to_host(d->logits({&got.draft, 1}));
    d->watch(&got.steps);
    d->propose({&got.draft, 1});
    all.push_back(std::move(got));
  }
  return all;
}

struct Family {
  const char* folder;
  const char* kind;  // in the names of what is expected
  int rows;          // of the head
  bool anchor;
};
const Family kGemma{"dspark_gemma", "", 128, true}, kOwn{"dspark", "own_", 48, false},
    kAnchor{"dspark", "anchor_", 48, true};

void from_anchor(RandomDrafter& f) {
  f.edit("\"sample_from_anchor\": false", "\"sample_from_anchor\": true");
  f.edit("\"speculative_tokens\": 5", "\"speculative_tokens\": 6");
}
template <class B>
Difference difference(const Family& family, Spoil spoil = {}, bool steps = true) {
  RandomDrafter file(family.folder);
  if (family.anchor && family.rows == 48) from_anchor(file);
  const auto expected = file.expected();
  Difference worst;
  int i = 0;
  for (const Drafted& got : rounds<B>(file, spoil)) {
    const std::string at = i++ == 0 ? "9" : "22";
    const auto want = steps ? tensor_values<float>(expected, std::string("steps_") + family.kind + at)
                            : tensor_values<float>(expected, "base_" + at);
    const auto& have = steps ? got.steps : got.base;
    if (have.size() < want.size()) return {.max = 1e9, .rms = 1e9};
    const Difference d = compare(have, want, family.rows);
    worst.max = std::max(worst.max, d.max), worst.rms = std::max(worst.rms, d.rms);
  }
  return worst;
}
template <class B>
void expect_golden(double most, double rms) {
  for (const Family& family : {kGemma, kOwn, kAnchor}) {
    for (const bool steps : {false, true}) {
      const Difference d = difference<B>(family, {}, steps);
      EXPECT_LE(d.max, most) << family.folder << " " << family.kind << steps;
      EXPECT_LE(d.rms, rms) << family.folder << " " << family.kind << steps;
    }
    RandomDrafter file(family.folder);
    if (family.anchor && family.rows == 48) from_anchor(file);
    const auto expected = file.expected();
    int i = 0;
    for (const Drafted& got : rounds<B>(file)) {
      const std::string name = family.kind + std::string(i++ == 0 ? "9" : "22");
      const auto ids = tensor_values<int32_t>(expected, "ids_" + name);
      const auto sure = tensor_values<float>(expected, "sure_" + name);
      EXPECT_EQ(std::vector<int32_t>(got.draft.token.begin() + 1, got.draft.token.end()), ids) << name;
      ASSERT_EQ(got.draft.confidence.size(), sure.size());
      for (size_t k = 0; k < sure.size(); ++k) EXPECT_NEAR(got.draft.confidence[k], sure[k], most) << name;
    }
  }
}
TEST(DsparkGolden, ChainsAndConfidences) { expect_golden<CpuRef>(1e-3, 1e-4); }
TEST(DsparkGolden, FastIsClose) { expect_golden<CpuFast>(3e-2, 3e-3); }
TEST(DsparkGolden, NewMemoryIsNeverRead) {
  EXPECT_LE(difference<NewMemoryIsNaN<CpuRef>>(kGemma).rms, 1e-4);
  EXPECT_LE(difference<NewMemoryIsNaN<CpuRef>>(kOwn).rms, 1e-4);
}

// A shorter draft of a block whose slots see one another is the beginning of the long one.
TEST(DsparkRuntime, ShortDraftsAreTheBeginningOfLongOnes) {
  for (const Family& family : {kGemma, kOwn, kAnchor}) {
    RandomDrafter file(family.folder);
    if (family.anchor && family.rows == 48) from_anchor(file);
    const auto all = rounds<CpuRef>(file);
    for (const int n : {1, 2, 4}) {
      RandomDrafter again(family.folder);
      if (family.anchor && family.rows == 48) from_anchor(again);
      const auto some = rounds<CpuRef>(again, {}, n);
      for (size_t i = 0; i < all.size(); ++i) {
        ASSERT_EQ(some[i].draft.n_draft(), n);
        EXPECT_TRUE(std::equal(some[i].draft.token.begin(), some[i].draft.token.end(), all[i].draft.token.begin()));
        for (int k = 0; k < n; ++k) EXPECT_EQ(some[i].draft.confidence[size_t(k)], all[i].draft.confidence[size_t(k)]);
      }
    }
  }
}

// Several sequences with drafts of their own lengths: each as it is alone.
TEST(DsparkRuntime, NeighboursChangeNothing) {
  for (const char* family : {"dspark", "dspark_gemma"}) {
    const RandomDrafter file(family);
    const auto golden = file.golden();
    const auto ids = random_tokens("golden.ids", RandomDrafter::kTokens, 128);
    StandIn<CpuRef> t(golden, exact_plan(3));
    auto d = must(Dflash<CpuRef>::open(must(DrafterFile::open(file.path())), t.view()));
    const auto features = t.rows_of("features", 192);
    const std::vector<int> at{9, 22, 14}, most{5, 2, 4};
    for (int s = 0; s < 3; ++s)
      for (int from = 0; from < at[size_t(s)];) {
        const Committed rows{.slot = s, .position = from, .row = from, .n = std::min(4, at[size_t(s)] - from)};
        d->absorb({&rows, 1}, {.taps = features});
        from += rows.n;
      }
    auto drafted = [&](std::vector<int> slots) {
      std::vector<Draft> drafts;
      for (const int s : slots)
        drafts.push_back({.slot = s,
                          .position = at[size_t(s)],
                          .max_draft = most[size_t(s)],
                          .n_top = 3,
                          .token = {ids[size_t(at[size_t(s)])]}});
      d->propose(drafts);
      return drafts;
    };
    for (const Draft& x : drafted({2, 0, 1})) {
      EXPECT_EQ(x.n_draft(), most[size_t(x.slot)]);
      const Draft alone = drafted({x.slot})[0];
      EXPECT_EQ(alone.token, x.token);
      EXPECT_EQ(alone.top, x.top);
      EXPECT_EQ(alone.top_log_prob, x.top_log_prob);
      EXPECT_EQ(alone.confidence, x.confidence);
    }
  }
}

// --- DFlash 2

template <class B>
Difference selector_difference(Spoil spoil = {}) {
  RandomDrafter file("dflash2");
  const auto expected = file.expected();
  Difference worst;
  int i = 0;
  for (const Drafted& got : rounds<B>(file, spoil)) {
    const std::string at = i++ == 0 ? "9" : "22";
    const auto ids = tensor_values<int32_t>(expected, "ids_" + at);
    if (got.draft.token.size() != ids.size() + 1 || !std::equal(ids.begin(), ids.end(), got.draft.token.begin() + 1))
      return {.max = 1e9, .rms = 1e9};
    Difference d = compare(got.base, tensor_values<float>(expected, "base_" + at), 128);
    worst.max = std::max(worst.max, d.max), worst.rms = std::max(worst.rms, d.rms);
    // Scores are log-probabilities here and logits there: they differ by a constant a slot.
    auto want = tensor_values<float>(expected, "scores_" + at), have = got.steps;
    for (size_t r = 0; r < want.size(); r += 8)
      for (auto* v : {&want, &have})
        for (size_t k = 8; k-- > 0;) (*v)[r + k] -= (*v)[r];
    d = compare(have, want, 8);
    worst.max = std::max(worst.max, d.max), worst.rms = std::max(worst.rms, d.rms);
  }
  return worst;
}
TEST(Dflash2Golden, LogitsScoresAndChains) {
  const Difference d = selector_difference<CpuRef>();
  EXPECT_LE(d.max, 1e-3);
  EXPECT_LE(d.rms, 1e-4);
  EXPECT_LE(selector_difference<NewMemoryIsNaN<CpuRef>>().rms, 1e-4);
  EXPECT_LE(selector_difference<CpuFast>().rms, 1e-2);
}
template <class Base>
struct TapsSwapped : Base {
  using Base::Base;
  using typename Base::Rows;
  void block_conv(Rows y, Rows x, Rows delta, typename Base::Vec base, const Step& s) {
    base.p += x.cols;  // the row before instead of the row itself
    base.n /= 2;
    Base::block_conv(y, x, delta.cols_at(delta.cols / 2, delta.cols / 2), base, s);
  }
};
template <class Base>
struct NoConvolution : Base {
  using Base::Base;
  using typename Base::Rows;
  void block_conv(Rows y, Rows x, Rows, typename Base::Vec, const Step&) { Base::copy_rows(y, x); }
};
TEST(Dflash2PlantedBug, Convolutions) {
  EXPECT_GT(selector_difference<NoConvolution<CpuRef>>().max, .1);
  EXPECT_GT(selector_difference<TapsSwapped<CpuRef>>().max, .1);
}
TEST(Dflash2PlantedBug, Selector) {
  auto worst = [](std::function<void(DflashCfg&)> cfg) {
    return selector_difference<CpuRef>({.shift = 0, .cfg = std::move(cfg), .file = {}}).max;
  };
  EXPECT_GT(worst([](DflashCfg& c) { std::swap(c.selector.predecessor, c.selector.successor); }), .1);
  EXPECT_GT(worst([](DflashCfg& c) { c.body.softcap = 5; }), .1);
  EXPECT_GT(worst([](DflashCfg& c) { c.body.embed_scale = 8; }), .1);
  EXPECT_GT(worst([](DflashCfg& c) { c.body.layer[0].causal_block = true; }), .1);
}

// --- planted bugs

template <class Base>
struct HeadsNotNormalised : Base {
  using Base::Base;
  void head_norm(typename Base::Rows, int, float) {}
};
template <class Base>
struct StreamNotScaled : Base {
  using Base::Base;
  using typename Base::Rows;
  void residual_norm(Rows x, Rows h, Rows y, ResidualSpec<typename Base::Vec> spec) {
    spec.out_scale = 1;
    Base::residual_norm(x, h, y, spec);
  }
};
double worst(const Family& f, std::function<void(DflashCfg&)> cfg) {
  return difference<CpuRef>(f, {.shift = 0, .cfg = std::move(cfg), .file = {}}).max;
}
TEST(DsparkPlantedBug, FeaturesShiftedByOne) {
  EXPECT_GT(difference<CpuRef>(kOwn, {.shift = 1, .cfg = {}, .file = {}}).max, .1);
  EXPECT_GT(difference<CpuRef>(kGemma, {.shift = 1, .cfg = {}, .file = {}}).max, .1);
}
TEST(DsparkPlantedBug, EmbeddingScaled) {
  EXPECT_GT(worst(kOwn, [](DflashCfg& c) { c.body.embed_scale = 8; }), .1);
  EXPECT_GT(worst(kGemma, [](DflashCfg& c) { c.body.embed_scale = 1; }), .1);
}
TEST(DsparkPlantedBug, SoftcapOfTheTarget) {
  EXPECT_GT(worst(kOwn, [](DflashCfg& c) { c.body.softcap = 30; }), .1);
  EXPECT_GT(worst(kGemma, [](DflashCfg& c) { c.body.softcap = 0; }), .1);
}
TEST(DsparkPlantedBug, WrongAlignment) {
  EXPECT_GT(worst(kOwn, [](DflashCfg& c) { c.from_anchor = true; }), .1);
  EXPECT_GT(worst(kAnchor, [](DflashCfg& c) { c.from_anchor = false; }), .1);
  EXPECT_GT(worst(kGemma, [](DflashCfg& c) { c.from_anchor = false; }), .1);
}
// W1 is by token of the target, not by row of the head.
TEST(DsparkPlantedBug, PredecessorIsARowOfTheHead) {
  EXPECT_GT(worst(kOwn, [](DflashCfg& c) { std::iota(c.id_map.begin(), c.id_map.end(), 0); }), .1);
}
TEST(DsparkPlantedBug, WholeRope) {
  EXPECT_GT(worst(kGemma,
                  [](DflashCfg& c) {
                    for (auto& f : c.freqs)
                      for (size_t i = 0; i < f.size(); ++i) f[i] = std::pow(1e6, -2.0 * double(i) / 64);
                  }),
            .1);
}
TEST(DsparkPlantedBug, ScoresScaled) {
  EXPECT_GT(worst(kGemma, [](DflashCfg& c) { c.body.attn_scale = 1 / 8.f; }), .1);
}
TEST(DsparkPlantedBug, BlockCausal) {
  EXPECT_GT(worst(kGemma,
                  [](DflashCfg& c) {
                    for (LayerCfg& l : c.body.layer) l.causal_block = true;
                  }),
            .1);
  EXPECT_GT(worst(kOwn, [](DflashCfg& c) { c.body.layer[0].causal_block = false; }), .1);
}
TEST(DsparkPlantedBug, ValuesNotNormalised) { EXPECT_GT(difference<HeadsNotNormalised<CpuRef>>(kGemma).max, .1); }
TEST(DsparkPlantedBug, StreamNotScaled) { EXPECT_GT(difference<StreamNotScaled<CpuRef>>(kGemma).max, .1); }

// --- EAGLE-3

struct Eagle3Way {
  const char* name;
  std::vector<std::pair<const char*, const char*>> edits;
  bool (*has)(const std::string& tensor);
};
bool is_norm_of_heads(const std::string& t) { return t.find("q_norm") != t.npos || t.find("k_norm") != t.npos; }
const Eagle3Way kEagle3Ways[] = {
    {"plain",
     {},
     [](const std::string& t) {
       return !t.starts_with("fc_norm") && !t.starts_with("input_norm") && !is_norm_of_heads(t);
     }},
    {"output",
     {{"\"norm_before_residual\": true", "\"norm_before_residual\": false"},
      {"\"fc_norm\": false", "\"fc_norm\": true"},
      {"\"norm_output\": false", "\"norm_output\": true"}},
     [](const std::string& t) { return !t.starts_with("input_norm") && !is_norm_of_heads(t); }},
    {"qwen", {{"\"norm_before_fc\": false", "\"norm_before_fc\": true"}}, [](const std::string& t) {
       return !t.starts_with("fc_norm");
     }}};

std::unique_ptr<RandomDrafter> eagle3_file(const Eagle3Way& way, int n_vocab = 128) {
  auto file = std::make_unique<RandomDrafter>(
      "eagle3", n_vocab, [&](const std::string& name, std::vector<float>&) { return way.has(name); });
  for (const auto& [find, put] : way.edits) file->edit(find, put);
  return file;
}
struct Eagle3Spoil {
  int shift = 0;       // features of another token
  int token = 0;       // tokens of another row
  bool keeps = false;  // the K/V rows of a chain stay in place of the real ones
  std::function<void(Eagle3Cfg&)> cfg = {};
};
template <class B>
Difference eagle3(const Eagle3Way& way, const Eagle3Spoil& spoil = {}) {
  const auto file = eagle3_file(way);
  const auto golden = file->golden(), expected = file->expected();
  const auto ids = random_tokens("golden.ids", RandomDrafter::kTokens, 128);
  StandIn<B> t(golden, exact_plan());
  const auto opened = must(DrafterFile::open(file->path()));
  Eagle3Cfg cfg = must(eagle3_config(opened, t.m));
  EXPECT_EQ(cfg.max_draft(), 6);
  if (spoil.cfg) spoil.cfg(cfg);
  auto d = must(Eagle3<B>::open(opened, std::move(cfg), t.view()));
  const auto features = t.rows_of("features", 192);
  Difference worst;
  for (const int at : {9, 22}) {
    for (int from = d->held(0); from < at;) {
      const int n = std::min(from % 2 ? 5 : 1, at - from);
      const Committed rows{.position = from,
                           .row = from + spoil.shift,
                           .n = n,
                           .token = std::span(ids).subspan(size_t(from + spoil.token), size_t(n))};
      d->absorb({&rows, 1}, {.taps = features});
      from += n;
    }
    Draft draft{.position = at, .max_draft = 5, .n_top = 1, .token = {ids[size_t(at)]}};
    std::vector<float> steps;
    d->watch(&steps);
    d->propose({&draft, 1});
    if (spoil.keeps) d->rows()->commit(0, 1);
    const std::string name = fmt::format("{}_{}", way.name, at);
    const auto want = tensor_values<float>(expected, "steps_" + name);
    if (steps.size() != want.size()) return {.max = 1e9, .rms = 1e9};
    const Difference x = compare(steps, want, 48);
    worst.max = std::max(worst.max, x.max), worst.rms = std::max(worst.rms, x.rms);
    if (worst.max < 1e-2) {
      EXPECT_EQ(std::vector<int32_t>(draft.token.begin() + 1, draft.token.end()),
                tensor_values<int32_t>(expected, "ids_" + name));
    }
    if (spoil.keeps) break;
  }
  return worst;
}
TEST(Eagle3Golden, Chains) {
  for (const Eagle3Way& way : kEagle3Ways) {
    const Difference d = eagle3<CpuRef>(way);
    EXPECT_LE(d.max, 1e-3) << way.name;
    EXPECT_LE(d.rms, 1e-4) << way.name;
    EXPECT_LE(eagle3<NewMemoryIsNaN<CpuRef>>(way).rms, 1e-4) << way.name;
    EXPECT_LE(eagle3<CpuFast>(way).rms, 2e-2) << way.name;
  }
}
template <class Base>
struct HeadsNotTurned : Base {
  using Base::Base;
  void head_rope(typename Base::Rows, typename Base::Freqs, const Step&) {}
};
TEST(Eagle3PlantedBug, EachIsSeen) {
  const Eagle3Way &plain = kEagle3Ways[0], &output = kEagle3Ways[1];
  EXPECT_GT(eagle3<CpuRef>(plain, {.shift = 1, .token = 0, .keeps = false, .cfg = {}}).max, .1);
  EXPECT_GT(eagle3<CpuRef>(plain, {.shift = 0, .token = 1, .keeps = false, .cfg = {}}).max, .1);
  auto worst = [](const Eagle3Way& way, std::function<void(Eagle3Cfg&)> cfg) {
    return eagle3<CpuRef>(way, {.shift = 0, .token = 0, .keeps = false, .cfg = std::move(cfg)}).max;
  };
  EXPECT_GT(worst(plain, [](Eagle3Cfg& c) { c.norm_before_residual = false; }), .1);
  EXPECT_GT(worst(output, [](Eagle3Cfg& c) { c.norm_output = false; }), .1);
  EXPECT_GT(worst(output, [](Eagle3Cfg& c) { c.norm_before_residual = true; }), .1);
  EXPECT_GT(worst(plain, [](Eagle3Cfg& c) { std::iota(c.id_map.begin(), c.id_map.end(), 0); }), .1);
  EXPECT_GT(worst(plain, [](Eagle3Cfg& c) { c.body.attn_scale = 1; }), .1);
  EXPECT_GT(eagle3<HeadsNotTurned<CpuRef>>(plain).max, .1);
}

// A sequence that goes back and on drafts as one that never did; so do a copy of its state and a neighbour.
TEST(Eagle3Runtime, StateComesBack) {
  const auto file = eagle3_file(kEagle3Ways[0]);
  const auto golden = file->golden();
  const auto ids = random_tokens("golden.ids", RandomDrafter::kTokens, 128);
  StandIn<CpuRef> t(golden, exact_plan(3));
  auto d = must(Eagle3<CpuRef>::open(must(DrafterFile::open(file->path())), t.view()));
  const auto features = t.rows_of("features", 192);
  auto absorb = [&](int slot, int to, int piece) {
    for (int from = d->held(slot); from < to;) {
      const int n = std::min(piece, to - from);
      const Committed rows{.slot = slot,
                           .position = from,
                           .row = from,
                           .n = n,
                           .token = std::span(ids).subspan(size_t(from), size_t(n))};
      d->absorb({&rows, 1}, {.taps = features});
      from += n;
    }
  };
  auto drafted = [&](std::vector<int> slots) {
    std::vector<Draft> drafts;
    for (const int s : slots)
      drafts.push_back(
          {.slot = s, .position = d->held(s), .max_draft = 5 - s, .n_top = 2, .token = {ids[size_t(d->held(s))]}});
    d->propose(drafts);
    return drafts;
  };
  absorb(0, 20, 4);
  const Draft want = drafted({0})[0];
  EXPECT_EQ(drafted({0})[0].top_log_prob, want.top_log_prob) << "a draft leaves no trace";
  for (const int back : {20, 19, 12, 3, 1}) {
    const int left = d->rewind(0, back);
    EXPECT_EQ(left, back == 20 ? 20 : back - 1);
    EXPECT_EQ(d->ready(0), back == 20);
    absorb(0, 20, 3);
    EXPECT_EQ(drafted({0})[0].top_log_prob, want.top_log_prob) << back;
  }
  must(d->fork(0, 1));
  absorb(2, 15, 1);
  const auto together = drafted({2, 0, 1});
  EXPECT_EQ(together[1].top_log_prob, want.top_log_prob);
  EXPECT_TRUE(std::equal(together[2].top_log_prob.begin(), together[2].top_log_prob.end(), want.top_log_prob.begin()));
  EXPECT_EQ(together[0].top_log_prob, drafted({2})[0].top_log_prob);

  const std::vector<float> beside = d->save(0);
  EXPECT_EQ(beside.size(), 64u) << "one state";
  EXPECT_FALSE(d->load(0, 20, std::span(beside).first(63)));
  EXPECT_FALSE(d->load(0, 20, {})) << "K/V rows end before row 19, whose state is missing";
  EXPECT_TRUE(d->load(0, 20, beside));
  EXPECT_EQ(drafted({0})[0].top_log_prob, want.top_log_prob);
}

}  // namespace
}  // namespace facet::test
