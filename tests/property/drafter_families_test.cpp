// Drafters of every family with weights of their own: whatever they draft, the text is that of plain decoding, and
// wherever a conversation's state comes from, they draft what they would have drafted.
#include <cstdlib>
#include <optional>

#include "backend/cpu/cpu_fast.h"
#include "compose/open_drafters.h"
#include "model/find_drafter.h"
#include "support/random_drafter.h"
#include "support/sanitized.h"
#include "support/scripted_drafter.h"
#include "support/session_edit.h"
#include "support/tiny_model.h"

namespace facet::test {
namespace {

constexpr int kVocab = 96;
const char* const kFamilies[] = {"dspark", "dspark_gemma", "dflash2", "eagle3"};

// EAGLE-3's fixture has tensors for flags that its configuration has not set.
bool belongs(const std::string& name, std::vector<float>&) {
  for (const char* other : {"fc_norm.", "input_norm."})
    if (name.starts_with(other)) return false;
  return true;
}

EngineConfig config(const std::string& model, KvType kv, int n_seq) {
  EngineConfig c;
  c.model = model;
  c.n_ctx = 256;
  c.max_seq = n_seq;
  c.chunk = 40;
  c.margin = 16;
  c.n_threads = 1;
  c.kv_k = c.kv_v = kv;
  return c;
}
template <class B>
std::unique_ptr<Engine> open(EngineConfig c, const std::string& drafter, DraftConfig draft) {
  LoadedModel model = must(load_model(c.model));
  c.draft = std::move(draft);
  if (!drafter.empty()) {
    c.draft.files = {drafter};
    model.drafters.push_back(must(DrafterFile::open(drafter)));
  }
  const EngineConfig decided = must(resolve_config(model.file, model.cfg, c, model.drafters));
  return must(create_engine<B>(std::move(model), decided, decided.n_threads));
}
Request request(int n_prompt, unsigned seed, float temperature) {
  Request r{.prompt = random_ids(n_prompt, kVocab, seed), .max_tokens = 28};
  r.sampling = {.temperature = temperature, .top_k = 20, .presence_penalty = 12, .repeat_last_n = 24, .seed = seed};
  return r;
}

template <class B>
class DrafterFamilies : public testing::Test {};
using Backends = testing::Types<CpuRef, CpuFast>;
TYPED_TEST_SUITE(DrafterFamilies, Backends);

// Each family with every K/V type, in chains and trees, alone and in a batch.
TYPED_TEST(DrafterFamilies, GivePlainText) {
  const TinyFile file({.type = std::is_same_v<TypeParam, CpuFast> ? DType::kQ8_0 : DType::kF32});
  const std::vector<DraftConfig> ways{{.max = 3, .min = 3}, {.max = 7, .min = 7}, {.max = 5, .min = 1, .tree = 9}};
  constexpr KvType kTypes[] = {KvType::kF32, KvType::kF16, KvType::kQ8_0, KvType::kQ4_0, KvType::kTQ3_0};
  for (const char* family : kFamilies) {
    const RandomDrafter drafter(family, kVocab, belongs);
    int at = 0;
    int64_t drafted = 0, accepted = 0;
    for (const KvType kv : kTypes)
      for (const int n_seq : {1, 4}) {
        const DraftConfig& way = ways[size_t(at++) % ways.size()];
        if (kSanitized && at % 5 != 1) continue;
        const EngineConfig c = config(file.path(), kv, n_seq);
        std::vector<Request> requests;
        for (int i = 0; i < n_seq; ++i)
          requests.push_back(request(i == 0 ? 61 : 5 + 17 * i, unsigned(at + i), (at + i) % 2 ? .8f : 0.f));
        const auto engine = open<TypeParam>(c, drafter.path(), way);
        const std::vector<Answer> got = answers(*engine, requests);
        for (size_t i = 0; i < requests.size(); ++i) {
          const Answer want = answers(*open<TypeParam>(c, "", {}), {requests[i]})[0];
          EXPECT_EQ(got[i].error, "");
          EXPECT_EQ(got[i].tokens, want.tokens) << family << " " << kv_type_name(kv) << " " << n_seq << " " << i;
          EXPECT_GT(got[i].usage.drafted, 0) << family;
          drafted += got[i].usage.drafted, accepted += got[i].usage.accepted;
        }
      }
    std::printf("%s: %d of %d drafts right\n", family, int(accepted), int(drafted));
    EXPECT_LT(accepted, drafted);
    if (!kSanitized) {
      EXPECT_GT(accepted, 0) << family;  // by chance
    }
  }
}

// A conversation that goes on in its slot is drafted for as one that is read anew: the same text, the same drafts.
TYPED_TEST(DrafterFamilies, ConversationsGoOn) {
  const TinyFile file({.type = std::is_same_v<TypeParam, CpuFast> ? DType::kQ8_0 : DType::kF32});
  for (const char* family : kFamilies) {
    const RandomDrafter drafter(family, kVocab, belongs);
    const EngineConfig c = config(file.path(), KvType::kF16, 1);
    const DraftConfig way{.max = 5, .min = 5};
    Request first = request(50, 3, 0), second = first;
    const auto warm = open<TypeParam>(c, drafter.path(), way), cold = open<TypeParam>(c, drafter.path(), way);
    const Answer before = answers(*warm, {first})[0];
    second.prompt.insert(second.prompt.end(), before.tokens.begin(), before.tokens.end());
    for (const int32_t id : random_ids(9, kVocab, 8)) second.prompt.push_back(id);
    const Answer a = answers(*warm, {second})[0], b = answers(*cold, {second})[0];
    EXPECT_EQ(a.tokens, b.tokens) << family;
    EXPECT_GT(a.usage.cached, 0) << family;
    EXPECT_EQ(a.usage.drafted, b.usage.drafted) << family;
    EXPECT_EQ(a.usage.accepted, b.usage.accepted) << family;
  }
}

// --- a conversation's state in the pool, in host memory and in a file

// Embeddings of a block are large in layers of Gemma's form: there what the rows say is made to weigh as much.
bool reads_its_rows(const std::string& name, std::vector<float>& v) {
  if (name.ends_with("post_attention_layernorm.weight"))
    for (float& x : v) x *= 16;
  return belongs(name, v);
}

using Source = CacheUse::Source;
struct Told {
  std::vector<int32_t> tokens = {};
  std::vector<std::vector<int32_t>> drafts = {};  // position, newest token, drafts
  Usage usage = {};
};
// A family beside a model, in two turns.
template <class B>
class TwoTurns {
 public:
  Request first, second;
  // What comes back without the beginning of its first answer, as thoughts are dropped.
  Request changed;
  Told want, want_changed;  // computed afresh

  explicit TwoTurns(const std::string& family) : family_(family) {
    const bool shipped = family == "mtp", dflash = family == "dflash";  // those have files for a target of their shapes
    const int vocab = dflash ? 128 : kVocab;
    if (shipped)
      model_ = std::string(FACET_SOURCE_DIR) + "/models/facet-nano-Q8_0.gguf";
    else
      file_.emplace(TinyModel{.vocab = vocab, .type = std::is_same_v<B, CpuFast> ? DType::kQ8_0 : DType::kF32});
    if (file_) model_ = file_->path();
    if (shipped || dflash)
      drafter_ = shipped ? find_drafter_beside(model_, family).path : data_path("drafters/dflash");
    else if (family != "suffix")
      random_.emplace(family, vocab, reads_its_rows), drafter_ = random_->path();
    // Few tokens, so that some follow the same ones again.
    first = {.prompt = random_ids(90, 12, 3), .max_tokens = 28, .sampling = {.temperature = 0}, .ignore_eos = true};
    const auto cold = open();
    const Told told = ask(*cold, first);
    second = changed = first;
    second.prompt.insert(second.prompt.end(), told.tokens.begin(), told.tokens.end());
    changed.prompt.insert(changed.prompt.end(), told.tokens.begin() + 8, told.tokens.end());
    for (Request* r : {&second, &changed}) r->prompt.push_back(7);
    want = ask(*cold, afresh(second)), want_changed = ask(*cold, afresh(changed));
    EXPECT_EQ(want.usage.cached, 0);
    EXPECT_GT(want.usage.drafted, 0) << family;
  }
  // snapshots: beside the one that runs. disk: a folder, or none.
  std::unique_ptr<Engine> open(int snapshots = 3, const std::string& disk = "") {
    EngineConfig c = config(model_, KvType::kF16, 1);
    c.snapshots = snapshots, c.cache_ram = 64 << 20, c.cache_disk = disk;
    c.drafted = [this](const DraftRound& r) {
      drafts_.push_back({r.position});
      drafts_.back().insert(drafts_.back().end(), r.token.begin(), r.token.end());
    };
    DraftConfig way{.max = 5, .min = 5};
    way.suffix = family_ == "suffix";
    return facet::test::open<B>(c, drafter_, way);
  }
  Told ask(Engine& e, const Request& r) {
    drafts_.clear();
    const Answer a = answers(e, {r})[0];
    EXPECT_EQ(a.error, "") << family_;
    return {a.tokens, drafts_, a.usage};
  }
  // Others take every place.
  void push_out(Engine& e) {
    for (unsigned i = 0; i < 4; ++i)
      ask(e, {.prompt = random_ids(90, 96, 50 + i), .max_tokens = 1, .sampling = {.temperature = 0}});
  }
  // What is wrong: nothing, or in words.
  std::string differs(const Told& got, const Told& wanted, Source source) const {
    std::string s;
    if (got.tokens != wanted.tokens) s += " text";
    if (got.drafts != wanted.drafts) s += " drafts";
    if (got.usage.drafted == 0) s += " none";
    if (got.usage.cache.source != source || got.usage.cached < 80)
      s += fmt::format(" {} tokens from {}", got.usage.cached, cache_source_name(got.usage.cache.source));
    return s;
  }
  static Request afresh(Request r) {
    r.cache = false;
    return r;
  }

 private:
  std::string family_, model_, drafter_;
  std::optional<TinyFile> file_;
  std::optional<RandomDrafter> random_;
  std::vector<std::vector<int32_t>> drafts_;
};

TYPED_TEST(DrafterFamilies, GoOnFromEveryTier) {
  // Where the reference computes under sanitizers: minutes for all.
  const bool few = kSanitized && std::is_same_v<TypeParam, CpuRef>;
  for (const char* family :
       few ? std::vector{"dspark_gemma", "eagle3", "mtp"}
           : std::vector{"dspark", "dspark_gemma", "dflash2", "eagle3", "dflash", "mtp", "suffix"}) {
    TwoTurns<TypeParam> t(family);
    SCOPED_TRACE(family);
    {
      const auto e = t.open();
      t.ask(*e, t.first);
      EXPECT_EQ(t.differs(t.ask(*e, t.changed), t.want_changed, Source::kGpu), "") << "a snapshot";
      EXPECT_EQ(t.differs(t.ask(*e, t.second), t.want, Source::kGpu), "") << "its slot";
    }
    const TempFolder dir;
    {
      const auto e = t.open(1, dir.path());
      t.ask(*e, t.first);
      t.push_out(*e);
      EXPECT_EQ(t.differs(t.ask(*e, t.second), t.want, Source::kRam), "");
    }
    EXPECT_EQ(t.differs(t.ask(*t.open(1, dir.path()), t.changed), t.want_changed, Source::kDisk), "");
  }
}

// What waits beside the rows, or else the newest rows, did not come back: the text stays, the drafts do not. MTP has nothing
// that the first row computed would not bring, and suffix decoding nothing at all.
TYPED_TEST(DrafterFamilies, AStateWithoutTheDraftersIsSeen) {
  const bool few = kSanitized && std::is_same_v<TypeParam, CpuRef>;
  for (const char* family : few ? std::vector{"dspark_gemma", "eagle3"}
                                : std::vector{"dspark", "dspark_gemma", "dflash2", "eagle3", "dflash"}) {
    TwoTurns<TypeParam> t(family);
    SCOPED_TRACE(family);
    const TempFolder dir;
    t.ask(*t.open(1, dir.path()), t.first);
    EXPECT_EQ(t.differs(t.ask(*t.open(1, dir.path()), t.second), t.want, Source::kDisk), "");
    const TempFolder spoilt;
    t.ask(*t.open(1, spoilt.path()), t.first);
    for (const std::string& f : spoilt.sessions()) {
      SessionBytes s = open_session_bytes(f);
      const SessionHeader::Owner& drafter = s.header.owners[1];
      if (const auto beside = s.section(drafter.beside); !beside.empty())
        std::ranges::fill(beside, std::byte(0));
      else
        for (const SessionHeader::Section& p : drafter.sections)
          for (int i = 1; i <= 16; ++i) {
            const size_t row = size_t(p.row_bytes), at = size_t(uint64_t(drafter.len - i) % p.rows) * row;
            std::ranges::fill(s.section(p).subspan(at, row), std::byte(0));
          }
      seal_session_bytes(f, s);
    }
    EXPECT_EQ(t.differs(t.ask(*t.open(1, spoilt.path()), t.second), t.want, Source::kDisk), " drafts");
  }
}

}  // namespace
}  // namespace facet::test
