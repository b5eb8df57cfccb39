#pragma once
#include <unistd.h>
#include <string>

#include "compose/load_model.h"
#include "compose/open_drafters.h"
#include "model/find_drafter.h"
#include "support/harness.h"
#include "support/scripted_drafter.h"
#include "support/tiny_model.h"

namespace facet::test {

// Engines on backends that are made of several, for the shipped models and others.
inline std::string shipped_path(const std::string& name) { return std::string(FACET_SOURCE_DIR) + "/models/" + name; }

inline EngineConfig shipped(const std::string& name) {
  EngineConfig c;
  c.model = shipped_path(name);
  c.backend = "ref";
  c.n_ctx = 1024, c.chunk = 64, c.n_threads = 1;
  c.kv_k = c.kv_v = KvType::kF16;
  return c;
}
// The arguments are the backend's.
template <class B, class... Args>
std::unique_ptr<Engine> open_parts(const EngineConfig& c, Args... args) {
  LoadedModel model = must(load_model(c.model));
  for (const std::string& f : c.draft.files) model.drafters.push_back(must(DrafterFile::open(f)));
  const EngineConfig decided = must(resolve_config(model.file, model.cfg, c, model.drafters));
  return must(create_engine<B>(std::move(model), decided, args...));
}
inline Request question(const Engine& e) {
  return {.prompt = e.tokenizer()->encode("<bos><|turn>user\nWrite name and age as JSON. Anna is 23 years old. Theo is "
                                          "31 years old.<turn|>\n<|turn>model\n<|channel>thought\n<channel|>",
                                          false, true),
          .max_tokens = 40,
          .sampling = {.temperature = 0}};
}
// The error of what `begin` starts, once the engine has told it; empty: none.
template <class F>
std::string told(Engine& e, F&& begin) {
  std::string error = "not told";
  begin([&error](const Result<SlotDone>& d) { error = d ? "" : d.error().message(); });
  for (int i = 0; i < 2000 && error == "not told"; ++i) {
    while (e.tick()) {
    }
    usleep(1000);
  }
  return error;
}

// A conversation goes on alike from what was computed anew, from the pool, and from a file that another engine reads;
// an engine of another make refuses that. open(): an engine; other(): one whose states are others.
template <class Open, class Other>
void states_are_whole(const TinyFile& file, Open&& open, Other&& other) {
  const std::string saved = file.path() + ".session";
  Request r{.prompt = random_ids(80, 96, 3), .max_tokens = 30, .sampling = {.temperature = 0}};
  auto e = open();
  const Answer first = answers(*e, {r})[0];
  r.prompt.insert(r.prompt.end(), first.tokens.begin(), first.tokens.end());
  r.prompt.push_back(5);
  int holds = -1;
  e->list_slots([&](const std::vector<SlotInfo>& all) {
    for (const SlotInfo& s : all)
      if (s.computed == 80 + 29) holds = s.id;
  });
  while (e->tick()) {
  }
  ASSERT_GE(holds, 0);
  ASSERT_EQ(told(*e, [&](auto done) { e->save_slot(holds, saved, done); }), "");
  const Answer cold = answers(*open(), {r})[0], warm = answers(*e, {r})[0];
  EXPECT_EQ(cold.usage.cached, 0);
  EXPECT_EQ(warm.usage.cached, 80 + 29);
  EXPECT_EQ(warm.tokens, cold.tokens);
  auto next = open();
  ASSERT_EQ(told(*next, [&](auto done) { next->restore_slot(0, saved, done); }), "");
  const Answer restored = answers(*next, {r})[0];
  EXPECT_EQ(restored.usage.cached, 80 + 29);
  EXPECT_EQ(restored.tokens, cold.tokens);
  auto foreign = other();
  EXPECT_NE(told(*foreign, [&](auto done) { foreign->restore_slot(0, saved, done); }), "");
  std::filesystem::remove(saved);
}

}  // namespace facet::test
