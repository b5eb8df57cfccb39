// facet doctor: the model's files, and the model at work.
#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <cmath>

#include "app/doctor.h"
#include "app/expert_usage.h"
#include "base/files.h"
#include "cache/kv_plan.h"
#include "compose/plan.h"
#include "formats/gguf.h"
#include "model/dflash_config.h"
#include "model/drafter_file.h"
#include "model/drafter_rules.h"
#include "model/gemma4_config.h"
#include "tokenizer/chat.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/vocab.h"
#include "tools/paths.h"

namespace facet {
namespace {

constexpr uint64_t kRead = 512 << 20;   // bytes of the file that are read for its speed
constexpr int kAnswer = 48;             // tokens of each answer
constexpr double kLowAcceptance = .10;  // of drafted tokens
constexpr const char* kPrompts[] = {"Hello",
                                    "What is the capital of France?",
                                    "Count from one to ten, separated by commas.",
                                    "Write a sentence about the sea.",
                                    "List three colours.",
                                    "What is 12 + 30?",
                                    "Say good morning in a friendly way.",
                                    "Which animals live on a farm?",
                                    "Explain in one sentence what rain is.",
                                    "Tell me a short story about a cat."};

// With those above, where two ways to run a drafter are compared.
constexpr const char* kMorePrompts[] = {"Write a function in Python that adds two numbers.",
                                        "Name the planets in their order.",
                                        "What is the opposite of cold?",
                                        "Give me a recipe for pancakes.",
                                        "Translate 'good night' into French.",
                                        "Who wrote Romeo and Juliet?",
                                        "Write a JSON object with a name and an age.",
                                        "How many days has a week?",
                                        "Explain what a computer does.",
                                        "Say thank you in three ways."};

// Whether every part is there and as long as its header says.
bool look_at_parts(Findings& f, const std::string& model) {
  uint64_t bytes = 0;
  const auto parts = gguf_parts(model);
  for (const std::string& path : parts) {
    auto map = MappedFile::open(path);
    if (!map) return f.fail("model file", map.error()), false;
    auto c = parse_gguf(map->bytes(), path, /*inspecting=*/true);
    if (!c) return f.fail("model file", c.error()), false;
    if (map->bytes().size() < c->data_end)
      return f.fail("model file",
                    fmt::format("{}: {} bytes short of {}", path, c->data_end - map->bytes().size(), c->data_end),
                    "download it again"),
             false;
    bytes += map->bytes().size();
  }
  f.ok("model file", fmt::format("{}: complete, {} in {} file{}", model, human_bytes(int64_t(bytes)), parts.size(),
                                 parts.size() == 1 ? "" : "s"));
  return true;
}

void look_at_speed(Findings& f, const std::string& model) {
  auto fd = open_regular(model);
  if (!fd) return;
  std::vector<std::byte> buffer(8 << 20);
  const auto start = std::chrono::steady_clock::now();
  uint64_t n = 0;
  for (ssize_t got = 1; n < kRead && got > 0; n += uint64_t(got > 0 ? got : 0))
    got = ::pread(*fd, buffer.data(), buffer.size(), off_t(n));
  ::close(*fd);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  const double rate = double(n) / 1e9 / std::max(seconds, 1e-6);
  const std::string what =
      fmt::format("{:.1f} GB/s over {} (what is in the page cache counts as it is)", rate, human_bytes(int64_t(n)));
  if (rate < .1)
    f.warn("read speed", what, "put the model on a faster disk");
  else
    f.ok("read speed", what);
}

// What the file says of its tokens: an instruct model has a chat template and tokens that begin and end turns.
bool look_at_tokens(Findings& f, const GgufFile& file) {
  auto vocab = vocab_from_gguf(file);
  if (!vocab) return f.fail("tokenizer", vocab.error()), false;
  if (vocab->empty()) return f.fail("tokenizer", "the file has no vocabulary", "take the file of a whole model"), false;
  const std::string chat_template = vocab->chat_template;
  const auto notes = vocab->notes;
  auto t = Tokenizer::create(std::move(*vocab));
  if (!t) return f.fail("tokenizer", t.error()), false;
  f.ok("tokenizer", fmt::format("{} tokens", t->size()));
  for (const std::string& n : notes) f.warn("known defect", n, "it is corrected; a newer conversion has it right");
  if (chat_template.empty() || t->special().turn_open < 0)
    f.fail("instruct", "the file has no chat template: it is a base model, or was converted without one",
           "take the instruct model (-it) for chats");
  else
    f.ok("instruct", "it has a chat template and tokens for turns");
  return true;
}

struct Answers {
  Usage sum;
  int empty = 0;  // prompts without an answer
  std::string error, inactive;
  double right() const { return sum.drafted > 0 ? double(sum.accepted) / sum.drafted : 0; }
};

Status ask(Engine& engine, std::span<const char* const> prompts, Answers& a) {
  auto& [sum, empty, error, inactive] = a;
  const Variant variant = chat_variant(engine.tokenizer()->vocab().chat_template, engine.model().d_ple > 0);
  for (const char* prompt : prompts) {
    auto text = render_chat({Message{.role = "user", .content = std::string(prompt)}}, {},
                            {.add_generation_prompt = true, .variant = variant});
    if (!text) return text.error();
    Request r{.prompt = engine.tokenizer()->encode(*text, false, true), .max_tokens = kAnswer, .sampling = {}};
    r.sampling.temperature = 0;
    auto id = engine.submit(std::move(r), {.tokens = [](RequestId, std::span<const int32_t>) {},
                                           .done =
                                               [&](RequestId, Stop, const Usage& u, const std::string& e) {
                                                 empty += u.generated == 0;
                                                 sum.generated += u.generated, sum.decode_s += u.decode_s;
                                                 sum.drafted += u.drafted, sum.accepted += u.accepted;
                                                 sum.rounds += u.rounds, sum.decode_steps += u.decode_steps;
                                                 if (!e.empty()) error = e;
                                                 if (!u.draft_inactive_reason.empty())
                                                   inactive = u.draft_inactive_reason;
                                               }});
    if (!id) return id.error();
    while (engine.tick()) {
    }
  }
  return Ok{};
}

// Ten answers. Whether they have text, how fast they come, and how many drafted tokens were right.
void look_at_answers(Findings& f, Engine& engine) {
  Answers a;
  if (auto ok = ask(engine, kPrompts, a); !ok) return f.fail("answers", ok.error());
  const auto& [sum, empty, error, inactive] = a;
  if (!error.empty())
    return f.fail("answers", error, "the file is damaged, or a kernel is wrong: facet run --lockstep");
  if (empty > 0)
    return f.fail("answers", fmt::format("{} of {} prompts got no token", empty, std::size(kPrompts)),
                  "facet run --lockstep compares with the reference");
  f.ok("answers", fmt::format("{} prompts, {} tokens, {:.1f} tok/s", std::size(kPrompts), sum.generated,
                              sum.decode_s > 0 ? sum.generated / sum.decode_s : 0.));
  if (!engine.config().draft.any()) return;
  const double share = a.right();
  const std::string what =
      fmt::format("{} of {} drafted tokens were right ({:.0f} %)", sum.accepted, sum.drafted, 100 * share);
  if (inactive.empty() && sum.drafted == 0)
    f.fail("drafting", "the drafter proposes nothing, though it has to",
           "it is damaged (its outputs are no numbers): download or convert it again");
  else if (sum.drafted > 0 && sum.accepted == 0)
    f.fail("drafting", what,
           "the drafter belongs to another model, or is damaged (NaN): take the one that was made for this model");
  else if (!inactive.empty())
    f.warn("drafting", what + "; " + inactive, "");
  else if (sum.drafted > 0 && share < kLowAcceptance)
    f.warn("drafting", what, "a drafter made for this very model is right more often");
  else
    f.ok("drafting", what);
}

// Whether a name is a way to search instead of a file.
bool is_named(const std::vector<std::string>& sources) {
  return std::any_of(sources.begin(), sources.end(), [](const std::string& s) {
    for (const char* word : {"auto", "none", "dflash", "mtp", "suffix", "ngram"})
      if (s == word) return false;
    return true;
  });
}

// What a drafter's embeddings are multiplied by decides how many drafts are right, and files do not always say it: the
// factor that was chosen and the other usual one, on twenty prompts each.
void look_at_embedding_scale(Findings& f, EngineConfig c, const DrafterFile& d, const ModelCfg& m) {
  constexpr double kBetter = 1.2;  // times as many right
  const auto cfg = dflash_config(d, m);
  const auto rules = block_rules(d);
  if (!cfg || !rules) return;  // opening it said why
  const double target = m.embed_scale, chosen = cfg->body.embed_scale;
  const double other = std::abs(chosen - target) < 1e-3 * target ? 1 : target;
  c.draft.files = {d.path()}, c.draft.suffix = false;
  double right[2];
  std::string found;
  for (const bool second : {false, true}) {
    c.draft.embed_scale = second ? other : chosen;
    auto engine = Engine::open(c);
    if (!engine) return f.fail("draft scale", engine.error());
    Answers a;
    for (const auto& prompts : {std::span<const char* const>(kPrompts), std::span<const char* const>(kMorePrompts)})
      if (auto ok = ask(**engine, prompts, a); !ok) return f.fail("draft scale", ok.error());
    right[second] = a.right();
    found += fmt::format("{}embedding scale {:g} ({}): {} of {} drafted tokens right ({:.1f} %)", second ? "; " : "",
                         c.draft.embed_scale, second ? "the other usual one" : rules->embed_scale.why, a.sum.accepted,
                         a.sum.drafted, 100 * a.right());
  }
  const auto line = [&](double scale) {
    return fmt::format("--draft {} --draft-embedding-scale {:g}", d.path(), scale);
  };
  if (right[1] > kBetter * right[0])
    f.warn("draft scale", found, "use " + line(other));
  else
    f.ok("draft scale", found + fmt::format("; {} is what --draft {} does", line(chosen), d.path()));
}

}  // namespace

bool look_at_model(Findings& f, DoctorOptions o) {
  if (auto ok = find_model(o.engine.model); !ok) return f.fail("model file", ok.error()), false;
  const std::string& model = o.engine.model;
  if (!look_at_parts(f, model)) return false;
  auto file = open_gemma4(model);
  if (!file) return f.fail("model", file.error()), false;
  auto m = gemma4_config(*file);
  if (!m) return f.fail("model", m.error()), false;
  f.ok("model", fmt::format("{}: {} layers, width {}, trained for {} tokens", m->name, m->n_layer(), m->d_model,
                            m->n_ctx_train));
  look_at_speed(f, model);
  if (!look_at_tokens(f, *file)) return false;
  auto files = draft_files(model, o.draft);
  if (!files) return f.fail("drafter", files.error()), false;
  for (const std::string& note : files->notes) f.warn("drafter", note, "");
  std::vector<DrafterFile> drafters;
  for (const std::string& path : files->paths) {
    auto d = DrafterFile::open(path);
    if (!d) return f.fail("drafter", d.error()), false;
    if (o.engine.draft.embed_scale > 0) d->set_embedding_scale(o.engine.draft.embed_scale);
    f.ok("drafter", fmt::format("{}: {}", path, drafter_kind_name(d->kind())));
    for (const std::string& line : describe_drafter(*d)) f.ok("drafter", line);
    drafters.push_back(std::move(*d));
  }
  if (files->suffix) f.ok("drafter", "suffix: what followed the same tokens before");
  if (files->paths.empty() && !files->suffix) f.ok("drafter", "none: plain decoding");
  EngineConfig c = o.engine;
  c.draft.files = files->paths, c.draft.suffix = files->suffix;
  if (auto ok = read_kv_choices(c, *file); !ok) return f.fail("plan", ok.error()), false;
  if (auto ok = find_expert_usage(c, *file); !ok) return f.fail("plan", ok.error()), false;
  auto decided = resolve_config(*file, *m, c, drafters);
  if (!decided) return f.fail("plan", decided.error()), false;
  const int64_t bytes = plan_memory(*file, *m, *decided, drafters).total();
  f.ok("plan", fmt::format("{} for {} requests of {} tokens, on {}", human_bytes(bytes), decided->max_seq,
                           decided->n_ctx, decided->backend));
  if (o.quick) return true;
  c.draft.optional = false;
  c.draft.min = std::max(1, c.draft.min);  // drafts in every step, faster or not: their worth is to be known
  auto engine = Engine::open(c);
  if (!engine) return f.fail("load", engine.error()), false;
  f.ok("load", "the model and its drafters are loaded");
  look_at_answers(f, **engine);
  engine->reset();  // its memory
  for (const DrafterFile& d : drafters)
    if (d.kind() == DrafterKind::kDflash && is_named(o.draft.sources)) look_at_embedding_scale(f, c, d, *m);
  return true;
}

}  // namespace facet
