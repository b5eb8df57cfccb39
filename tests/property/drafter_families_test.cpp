// Drafters of every family with weights of their own: whatever they draft, the text is that of plain decoding.
#include <cstdlib>

#include "backend/cpu/cpu_fast.h"
#include "compose/open_drafters.h"
#include "support/random_drafter.h"
#include "support/sanitized.h"
#include "support/scripted_drafter.h"
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

}  // namespace
}  // namespace facet::test
