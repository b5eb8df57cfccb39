// Logits of drafters: tests/data/drafters (tools/make_drafter_fixtures.py), and the official models where
// FACET_TEST_FIXTURES names a folder that has drafters-dense.
#include <cstdlib>
#include <fstream>
#include <limits>

#include "backend/cpu/cpu_fast.h"
#include "support/broken.h"
#include "support/drafter_bench.h"
#include "tools/draft_logits.h"

namespace facet::test {
namespace {

constexpr int V = 128;
struct Spoil {
  int shift = 0;             // features of another token
  float embed = 1;           // of the target's scale
  bool before_norm = false;  // the hidden state before the target's output norm
  int donor = 0;             // layers before the right one of the kind
};

template <class B>
std::vector<float> dflash_logits(int at, BlockMask how, Spoil spoil = {}, KvType kv = KvType::kF32) {
  const std::string dir = data_path("drafters/dflash");
  const auto golden = must(SafetensorsFile::open(dir + "/golden.safetensors"));
  const auto ids = tensor_values<int32_t>(golden, "ids");
  KvPlan plan = exact_plan();
  plan.k = plan.v = kv;
  StandIn<B> t(golden, plan);
  t.m.embed_scale *= spoil.embed;
  const auto file = must(DrafterFile::open(dir));
  auto d = must(Dflash<B>::open(file, must(dflash_config(file, t.m, how)), t.view()));
  const auto features = t.rows_of("features", 192);
  for (int from = 0; from < at; from += 5) {
    const Committed rows{.position = from, .row = from + spoil.shift, .n = std::min(5, at - from)};
    d->absorb({&rows, 1}, {.taps = features});
  }
  const Draft draft{.position = at, .max_draft = 7, .token = {ids[size_t(at)]}};
  return t.b.to_host(d->logits({&draft, 1}));
}
template <class B>
Difference dflash(int at, const std::string& mask, BlockMask how, Spoil spoil = {}) {
  const auto golden = must(SafetensorsFile::open(data_path("drafters/dflash") + "/golden.safetensors"));
  return compare(dflash_logits<B>(at, how, spoil),
                 tensor_values<float>(golden, "logits_" + mask + "_c" + std::to_string(at)), V);
}

TEST(DflashGolden, EverySlotOfTheBlock) {
  for (const int at : {12, 40, 43})
    for (const bool causal : {true, false}) {
      const Difference d =
          dflash<CpuRef>(at, causal ? "causal" : "bidir", causal ? BlockMask::kFile : BlockMask::kBidirectional);
      EXPECT_LE(d.max, 3e-3) << at;
      EXPECT_LE(d.rms, 4e-4) << at;
      EXPECT_EQ(d.same_top, 8);
    }
}
// Memory that nothing was written to is never read.
TEST(DflashGolden, NewMemoryIsNeverRead) {
  EXPECT_LE(dflash<NewMemoryIsNaN<CpuRef>>(40, "causal", BlockMask::kFile).rms, 4e-4);
}
TEST(DflashGolden, FastIsClose) { EXPECT_LE(dflash<CpuFast>(40, "causal", BlockMask::kFile).rms, 1e-3); }
// A cache of some type gives what an exact one gives of rows that went through that type, but for the order of sums.
// So all that a type costs is what its codec says, which has bounds of its own (KvCodec).
TEST(DflashGolden, ItsOwnRowsInEveryType) {
  using Through = ThroughType<CpuRef>;
  for (const KvType type : kv_types()) {
    Through::type = type;
    const auto want = dflash_logits<Through>(40, BlockMask::kFile);
    const Difference d = compare(dflash_logits<CpuRef>(40, BlockMask::kFile, {}, type), want, V);
    EXPECT_LE(d.max, 3e-3) << kv_type_name(type);
    EXPECT_LE(d.rms, 4e-4) << kv_type_name(type);
    Through::type = type == KvType::kQ8_0 ? KvType::kQ4_0 : KvType::kQ8_0;
    EXPECT_GT(compare(dflash_logits<Through>(40, BlockMask::kFile), want, V).rms, 4e-4) << "another type is told apart";
  }
}

TEST(DflashPlantedBug, EmbeddingNotScaled) {
  EXPECT_GT(dflash<CpuRef>(40, "causal", BlockMask::kFile, {.embed = 1.f / 8}).max, .1);
}
TEST(DflashPlantedBug, EmbeddingScaledTwice) {
  EXPECT_GT(dflash<CpuRef>(40, "causal", BlockMask::kFile, {.embed = 8}).max, .1);
}
TEST(DflashPlantedBug, FeaturesShiftedByOne) {
  EXPECT_GT(dflash<CpuRef>(40, "causal", BlockMask::kFile, {.shift = 1}).max, .1);
}
TEST(DflashPlantedBug, WindowOneTooWide) {
  EXPECT_GT(dflash<WindowOneTooWide<CpuRef>>(40, "causal", BlockMask::kFile).max, .1);
}
TEST(DflashPlantedBug, SlidingLayersBidirectional) {
  EXPECT_GT(dflash<CpuRef>(40, "causal", BlockMask::kBidirectional).max, .1);
}

// Where either has -inf, both must have it.
Difference compare_scored(std::vector<float> got, std::vector<float> want) {
  int differ = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    differ += std::isinf(got[i]) != std::isinf(want[i]);
    if (std::isinf(want[i]) && std::isinf(got[i])) got[i] = want[i] = -1e6f;
  }
  EXPECT_EQ(differ, 0) << "tokens scored by one only";
  return compare(got, want, V);
}

template <class B>
std::vector<float> mtp_logits(int P, const std::string& head, Spoil spoil = {}, KvType kv = KvType::kF32,
                              std::optional<KvType> as = {}) {
  const Folder dir(data_path("drafters/mtp"), "\"use_ordered_embeddings\": true",
                   head == "dense" ? "\"use_ordered_embeddings\": false" : "\"use_ordered_embeddings\": true");
  const auto golden = must(SafetensorsFile::open(dir.path() + "/golden.safetensors"));
  const auto ids = tensor_values<int32_t>(golden, "ids");
  KvPlan plan = exact_plan();
  plan.k = plan.v = kv;
  StandIn<B> t(golden, plan);
  t.m.embed_scale *= spoil.embed;
  t.fill_kv(P, 0, as);
  const auto file = must(DrafterFile::open(dir.path()));
  MtpCfg cfg = must(mtp_config(file, t.m, P > 6 ? 2 : 0));  // transformers' masks, see the tool
  for (LayerCfg& c : cfg.body.layer) c.kv_source -= 2 * spoil.donor;
  auto d = must(Mtp<B>::open(file, cfg, t.view()));
  const auto hidden = t.rows_of(spoil.before_norm ? "before_norm" : "final_hidden", 64);
  const Committed rows{.position = 0, .row = spoil.shift, .n = P};
  d->absorb({&rows, 1}, {.final_hidden = hidden});
  Draft draft{.position = P, .max_draft = 4, .token = {ids[size_t(P)]}};
  std::vector<float> all;
  for (int i = 0; i < 4; ++i) {
    const auto row = t.b.to_host(d->logits({&draft, 1}, i == 0));
    draft.token.push_back(int32_t(std::max_element(row.begin(), row.end()) - row.begin()));
    all.insert(all.end(), row.begin(), row.end());
  }
  return all;
}
template <class B>
Difference mtp(int P, const std::string& head, Spoil spoil = {}) {
  const auto golden = must(SafetensorsFile::open(data_path("drafters/mtp") + "/golden.safetensors"));
  return compare_scored(mtp_logits<B>(P, head, spoil), tensor_values<float>(golden, head + "_P" + std::to_string(P)));
}

TEST(MtpGolden, ChainsOfFourPasses) {
  for (const char* head : {"dense", "clustered"})
    for (const int P : {6, 10, 40}) {
      const Difference d = mtp<CpuRef>(P, head);
      EXPECT_LE(d.max, 3e-3) << head << " " << P;
      EXPECT_LE(d.rms, 4e-4) << head << " " << P;
      EXPECT_EQ(d.same_top, 4);
    }
}
TEST(MtpGolden, NewMemoryIsNeverRead) {
  EXPECT_LE(mtp<NewMemoryIsNaN<CpuRef>>(40, "dense").rms, 4e-4);
  EXPECT_LE(mtp<NewMemoryIsNaN<CpuRef>>(40, "clustered").rms, 4e-4);
}
TEST(MtpGolden, FastIsClose) {
  EXPECT_LE(mtp<CpuFast>(40, "dense").rms, 1e-3);
  EXPECT_LE(mtp<CpuFast>(40, "clustered").rms, 1e-3);
}
// As DflashGolden.ItsOwnRowsInEveryType; behind 40 tokens the sliding donor's ring has wrapped.
TEST(MtpGolden, DonorRowsInEveryType) {
  for (const int P : {6, 40})
    for (const KvType type : kv_types()) {
      const auto want = mtp_logits<CpuRef>(P, "dense", {}, KvType::kF32, type);
      const Difference d = compare(mtp_logits<CpuRef>(P, "dense", {}, type), want, V);
      EXPECT_LE(d.max, 3e-3) << kv_type_name(type);
      EXPECT_LE(d.rms, 4e-4) << kv_type_name(type);
      const KvType other = type == KvType::kQ8_0 ? KvType::kQ4_0 : KvType::kQ8_0;
      EXPECT_GT(compare(mtp_logits<CpuRef>(P, "dense", {}, KvType::kF32, other), want, V).rms, 4e-4);
    }
}

TEST(MtpPlantedBug, EmbeddingNotScaled) { EXPECT_GT(mtp<CpuRef>(6, "dense", {.embed = 1.f / 8}).max, .1); }
TEST(MtpPlantedBug, EmbeddingScaledTwice) { EXPECT_GT(mtp<CpuRef>(6, "dense", {.embed = 8}).max, .1); }
TEST(MtpPlantedBug, HiddenRowOfTheNextToken) { EXPECT_GT(mtp<CpuRef>(6, "dense", {.shift = 1}).max, .1); }
TEST(MtpPlantedBug, HiddenBeforeTheNorm) { EXPECT_GT(mtp<CpuRef>(6, "dense", {.before_norm = true}).max, .1); }
TEST(MtpPlantedBug, WrongDonor) { EXPECT_GT(mtp<CpuRef>(6, "dense", {.donor = 1}).max, .1); }
TEST(MtpPlantedBug, WindowOneTooWide) { EXPECT_GT(mtp<WindowOneTooWide<CpuRef>>(10, "dense").max, .1); }

// Several sequences in one step draft what each drafts alone, and drafting leaves no trace.
TEST(DflashRuntime, NeighboursAndRepetitionChangeNothing) {
  const std::string dir = data_path("drafters/dflash");
  const auto golden = must(SafetensorsFile::open(dir + "/golden.safetensors"));
  const auto ids = tensor_values<int32_t>(golden, "ids");
  StandIn<CpuRef> t(golden, exact_plan(3));
  auto d = must(Dflash<CpuRef>::open(must(DrafterFile::open(dir)), t.view()));
  const auto features = t.rows_of("features", 192);
  const std::vector<int> at{12, 40, 25};
  auto drafted = [&](std::vector<int> slots) {
    std::vector<Draft> drafts;
    for (int s : slots)
      drafts.push_back({.slot = s,
                        .position = at[size_t(s)],
                        .max_draft = 7 - s,
                        .n_top = 3,
                        .token = {ids[size_t(at[size_t(s)])]}});
    d->propose(drafts);
    return drafts;
  };
  for (int s = 0; s < 3; ++s)
    for (int from = 0; from < at[size_t(s)]; from += 4) {
      const Committed rows{.slot = s, .position = from, .row = from, .n = std::min(4, at[size_t(s)] - from)};
      d->absorb({&rows, 1}, {.taps = features});
    }
  const auto together = drafted({2, 0, 1});
  for (const Draft& x : together) {
    EXPECT_EQ(x.n_draft(), 7 - x.slot);
    const Draft alone = drafted({x.slot})[0];
    EXPECT_EQ(alone.token, x.token);
    EXPECT_EQ(alone.top, x.top);
    EXPECT_EQ(alone.top_log_prob, x.top_log_prob);
    for (int i = 0; i < x.n_draft(); ++i) EXPECT_EQ(x.top[size_t(3 * i)], x.token[size_t(i + 1)]);
  }
}

// Features are taken one at a time or many at once, as it suits; the drafts are the same.
template <class B>
void pieces_of_any_size() {
  const std::string dir = data_path("drafters/dflash");
  const auto golden = must(SafetensorsFile::open(dir + "/golden.safetensors"));
  const auto ids = tensor_values<int32_t>(golden, "ids");
  KvPlan plan = exact_plan();
  plan.max_step = 64;
  StandIn<B> t(golden, plan);
  auto d = must(Dflash<B>::open(must(DrafterFile::open(dir)), t.view()));
  const auto features = t.rows_of("features", 192);
  auto logits_after = [&](int piece, int shift = 0) {
    d->forget(0);
    for (int from = 0; from < 40; from += piece) {
      const Committed rows{.position = from, .row = from + shift, .n = std::min(piece, 40 - from)};
      d->absorb({&rows, 1}, {.taps = features});
    }
    const Draft draft{.position = 40, .max_draft = 7, .token = {ids[40]}};
    return t.b.to_host(d->logits({&draft, 1}));
  };
  const auto one_by_one = logits_after(1);
  for (const int piece : {2, 7, 16, 32, 40}) EXPECT_EQ(logits_after(piece), one_by_one) << piece;
  EXPECT_NE(logits_after(40, 1), one_by_one);
}
TEST(DflashRuntime, PiecesOfAnySizeGiveTheSameRows) { pieces_of_any_size<CpuRef>(); }
TEST(DflashRuntime, PiecesOfAnySizeGiveTheSameRowsFast) { pieces_of_any_size<CpuFast>(); }

// A tree's path and a chain of two sequences in one step give the rows that the plain order gives.
TEST(DflashRuntime, RowsOfAPath) {
  const std::string dir = data_path("drafters/dflash");
  const auto golden = must(SafetensorsFile::open(dir + "/golden.safetensors"));
  const auto ids = tensor_values<int32_t>(golden, "ids");
  const auto features = tensor_values<float>(golden, "features");
  StandIn<CpuRef> t(golden, exact_plan(2));
  auto d = must(Dflash<CpuRef>::open(must(DrafterFile::open(dir)), t.view()));
  // Features of one step: slot 1's five rows, of which 0, 2, 4 stay, then slot 0's three.
  auto step = [&](std::vector<int> tokens) {
    auto r = t.b.new_rows(int(tokens.size()), 192);
    std::vector<float> v;
    for (int k : tokens) v.insert(v.end(), features.begin() + k * 192, features.begin() + (k + 1) * 192);
    t.b.from_host(r, v);
    return r;
  };
  const std::vector<int16_t> path{0, 2, 4};
  const std::vector<Committed> rows{{.slot = 1, .position = 0, .row = 0, .n = 3, .path = path},
                                    {.slot = 0, .position = 0, .row = 5, .n = 3}};
  d->absorb(rows, {.taps = step({0, 40, 1, 41, 2, 0, 1, 2})});
  std::vector<Draft> drafts{{.slot = 0, .position = 3, .max_draft = 7, .token = {ids[3]}},
                            {.slot = 1, .position = 3, .max_draft = 7, .token = {ids[3]}}};
  d->propose(drafts);
  EXPECT_EQ(drafts[0].token, drafts[1].token);
  EXPECT_EQ(d->held(0), 3);
  EXPECT_EQ(d->rewind(0, 2), 2);
  EXPECT_EQ(d->held(0), 2);
  d->forget(1);
  EXPECT_EQ(d->held(1), 0);
}

// Chains of 2, 5 and 3 drafts together; each must be as it is alone.
template <class B>
std::vector<Draft> ragged_chains() {
  const std::string dir = data_path("drafters/mtp");
  const auto golden = must(SafetensorsFile::open(dir + "/golden.safetensors"));
  const auto ids = tensor_values<int32_t>(golden, "ids");
  StandIn<B> t(golden, exact_plan(3));
  auto d = must(Mtp<B>::open(must(DrafterFile::open(dir)), t.view()));
  const auto hidden = t.rows_of("final_hidden", 64);
  const std::vector<int> at{6, 40, 25}, length{2, 5, 3};
  for (int s = 0; s < 3; ++s) {
    t.fill_kv(at[size_t(s)], s);
    const Committed rows{.slot = s, .position = 0, .row = 0, .n = at[size_t(s)]};
    d->absorb({&rows, 1}, {.final_hidden = hidden});
  }
  auto drafted = [&](std::vector<int> slots) {
    std::vector<Draft> drafts;
    for (int s : slots)
      drafts.push_back({.slot = s,
                        .position = at[size_t(s)],
                        .max_draft = length[size_t(s)],
                        .n_top = 2,
                        .token = {ids[size_t(at[size_t(s)])]}});
    d->propose(drafts);
    return drafts;
  };
  const auto together = drafted({0, 1, 2});
  for (const Draft& x : together) {
    EXPECT_EQ(x.n_draft(), length[size_t(x.slot)]);
    const Draft alone = drafted({x.slot})[0];
    EXPECT_EQ(alone.token, x.token);
    EXPECT_EQ(alone.top_log_prob, x.top_log_prob);
  }
  return together;
}
TEST(MtpRuntime, RaggedChainsAreEachTheirOwn) { ragged_chains<CpuRef>(); }

// A backend that keeps the step's tokens, as a GPU does, and goes on with its own.
class RunsAhead : public CpuRef {
 public:
  using CpuRef::CpuRef;
  void begin_step(const Step& s) { token_.assign(s.token, s.token + s.shape.n_tok); }
  void next_step(const Step& s) { token_.resize(size_t(s.shape.n_tok)); }
  void next_tokens(Ids ids, Scores log_probs, Rows logits, int k) {
    top_k(ids, log_probs, logits, k);
    for (size_t t = 0; t < token_.size(); ++t) token_[t] = std::max(ids[t * size_t(k)], 0);
  }
  void embed(Rows x, Weight table, Step s, float scale) {
    s.token = token_.data();
    CpuRef::embed(x, table, s, scale);
  }

 private:
  std::vector<int32_t> token_;
};
static_assert(ChainsPasses<RunsAhead> && !ChainsPasses<CpuRef>);

TEST(MtpRuntime, PassesThatRunAheadOfTheHostDraftTheSame) {
  const auto want = ragged_chains<CpuRef>(), got = ragged_chains<RunsAhead>();
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_EQ(got[i].token, want[i].token);
    EXPECT_EQ(got[i].top, want[i].top);
    EXPECT_EQ(got[i].top_log_prob, want[i].top_log_prob);
  }
}

// The official models themselves, through the program's own path: the target computes what the drafter reads.
std::string fixtures() {
  const char* more = std::getenv("FACET_TEST_FIXTURES");
  return more && std::filesystem::exists(std::string(more) + "/drafters-dense") ? more : "";
}

TEST(OfficialDrafters, EndToEnd) {
  const std::string root = fixtures();
  if (root.empty()) GTEST_SKIP() << "FACET_TEST_FIXTURES has no drafters-dense";
  struct Case {
    std::string draft, golden;
    int at, extra = 0;
    BlockMask mask = BlockMask::kFile;
  };
  std::vector<Case> all;
  for (const int at : {12, 40, 43})
    for (const bool causal : {true, false})
      all.push_back({"dflash", std::string("logits_") + (causal ? "causal" : "bidir") + "_c" + std::to_string(at), at,
                     0, causal ? BlockMask::kFile : BlockMask::kBidirectional});
  for (const int at : {6, 10, 40})
    for (const char* draft : {"mtp/model.safetensors", "mtp/model.gguf", "mtp-centroid/model.safetensors"})
      all.push_back({draft, "", at, at > 6 ? 2 : 0});
  for (const Case& c : all) {
    const std::string folder = root + "/drafters-dense/" + c.draft.substr(0, c.draft.find('/'));
    const auto golden = must(SafetensorsFile::open(folder + "/golden.safetensors"));
    const auto got = must(draft_logits({.model = root + "/dense/model-BF16.gguf",
                                        .draft = root + "/drafters-dense/" + c.draft,
                                        .backend = "ref",
                                        .ids = tensor_values<int32_t>(golden, "ids"),
                                        .at = c.at,
                                        .window_extra = c.extra,
                                        .block_mask = c.mask}));
    std::vector<float> want;
    if (!c.golden.empty()) want = tensor_values<float>(golden, c.golden);
    for (int i = 0; i < 4 && c.golden.empty(); ++i) {
      auto row = tensor_values<float>(golden, fmt::format("step{}_P{}_logits", i, c.at));
      // transformers fills what it did not score with the least score less one
      const float fill = *std::min_element(row.begin(), row.end());
      if (c.draft.starts_with("mtp-centroid"))
        for (float& x : row)
          if (x == fill) x = -std::numeric_limits<float>::infinity();
      want.insert(want.end(), row.begin(), row.end());
    }
    auto logits = got.logits;
    ASSERT_EQ(logits.size(), want.size());
    for (size_t i = 0; i < want.size(); ++i) {
      ASSERT_EQ(std::isinf(logits[i]), std::isinf(want[i])) << c.draft << " " << i;
      if (std::isinf(want[i])) logits[i] = want[i] = -1e6f;
    }
    const Difference d = compare(logits, want, got.n_vocab);
    std::printf("| %s | at %d | max %.2e | rms %.2e |\n", c.draft.c_str(), c.at, d.max, d.rms);
    EXPECT_LE(d.max, 3e-3);
    EXPECT_LE(d.rms, 4e-4);
  }
}

TEST(OfficialDrafters, CentroidsThatAConverterDropped) {
  const std::string root = fixtures();
  if (root.empty()) GTEST_SKIP() << "FACET_TEST_FIXTURES has no drafters-dense";
  const auto golden = must(SafetensorsFile::open(root + "/drafters-dense/mtp-centroid/golden.safetensors"));
  const auto got = must(draft_logits({.model = root + "/dense/model-BF16.gguf",
                                      .draft = root + "/drafters-dense/mtp-centroid",
                                      .backend = "ref",
                                      .ids = tensor_values<int32_t>(golden, "ids"),
                                      .at = 6}));
  ASSERT_EQ(got.notes.size(), 2u);  // the GGUF was chosen; no centroids
  EXPECT_NE(got.notes[0].find("not the safetensors"), std::string::npos);
  EXPECT_NE(got.notes[1].find("no centroids"), std::string::npos);
  for (float x : got.logits) EXPECT_TRUE(std::isfinite(x));
  const auto first = tensor_values<float>(golden, "step0_P6_logits");  // the dense head agrees on what was scored
  const float fill = *std::min_element(first.begin(), first.end());
  for (size_t i = 0; i < first.size(); ++i)
    if (first[i] != fill) {
      EXPECT_NEAR(got.logits[i], first[i], 3e-3);
    }
}

}  // namespace
}  // namespace facet::test
