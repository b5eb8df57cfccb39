#include "tools/matrix_prompts.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <sstream>

#include "base/files.h"
#include "tokenizer/json.h"

namespace facet {
namespace {

constexpr int kRandomTokens = 64;  // of a prompt without a length

uint32_t next(uint32_t& state, uint32_t n) {
  state = state * 1664525u + 1013904223u;
  return uint32_t((uint64_t(state) * n) >> 32);
}

}  // namespace

std::vector<MatrixSet> builtin_sets() {
  return {{"chat",
           {"What is the capital of France?", "Tell me a short story about a cat and a lighthouse.",
            "Why is the sky blue? Answer in three sentences.", "Give me five ideas for a rainy afternoon."}},
          {"code",
           {"Write a Python function that returns the n-th Fibonacci number.",
            "Rename v to t in this code:\nwords = v * 7\nv.append(words)",
            "Write a C function that reverses a string in place, and explain it in one sentence.",
            "Complete this class:\nclass Stack:\n    def __init__(self):\n        self.items = []\n    def push("
            "self, item):"}},
          {"json",
           {"The painter Anna is 31 years old and lives in Vienna. Write job, age, name and city as JSON.",
            "Write a JSON array of three books, each with title, author and year.",
            "Describe a user with id, name, email and a list of two roles, as JSON and nothing else.",
            "The baker Tom is 52 years old and lives in Lima. The pilot Eva is 40 years old and lives in Oslo. Write "
            "job, age, name and city as JSON."}}};
}

Result<std::vector<MatrixSet>> read_prompt_sets(const std::string& path) {
  constexpr uint64_t kMost = uint64_t(256) << 20;
  auto text = read_file(path, kMost);
  if (!text) return text.error();
  std::istringstream lines(std::move(*text));
  std::vector<MatrixSet> sets;
  int n = 0;
  for (std::string line; std::getline(lines, line);) {
    ++n;
    if (line.empty()) continue;
    const std::string where = fmt::format("{}:{}", path, n);
    auto j = parse_json(line, where);
    if (!j) return j.error();
    auto text_of = [&](const char* key) -> const std::string* {
      return j->is_object() && j->contains(key) ? (*j)[key].get_ptr<const std::string*>() : nullptr;
    };
    const std::string *kind = text_of("kind"), *prompt = text_of("prompt"), *context = text_of("context");
    if (!kind || kind->empty() || (!prompt && !context))
      return Error{where, "expected the texts kind, and prompt or context; found others",
                   "each line is {kind, prompt}, or {kind, context} for a whole prompt with its special tokens"};
    auto at = std::find_if(sets.begin(), sets.end(), [&](const MatrixSet& s) { return s.name == *kind; });
    if (at == sets.end()) at = sets.insert(at, {.name = *kind, .prompts = {}, .raw = prompt == nullptr});
    if (at->raw != (prompt == nullptr))
      return Error{where, fmt::format("{}: expected one of prompt and context on all lines, found both", *kind),
                   "give the two kinds of lines two names"};
    at->prompts.push_back(prompt ? *prompt : *context);
  }
  if (sets.empty()) return Error{path, "expected prompts, found none", "each line is {kind, prompt}"};
  return sets;
}

std::string filler_text(int sentences) {
  static constexpr const char* kWho[] = {"the baker",  "a teacher", "the old sailor", "a quiet girl",
                                         "the farmer", "a painter", "the doctor",     "a young clerk"};
  static constexpr const char* kDid[] = {"repaired",   "painted",      "looked for",    "carried",
                                         "remembered", "talked about", "walked around", "wrote a letter about"};
  static constexpr const char* kWhat[] = {"bridge", "garden", "lamp",    "wooden boat", "clock",   "market",
                                          "window", "river",  "village", "red chair",   "library", "station"};
  static constexpr const char* kWhen[] = {"on Monday",          "in the morning",    "after the rain",
                                          "before the harvest", "during the winter", "at noon"};
  uint32_t state = 7;
  std::string text;
  for (int i = 0; i < sentences; ++i) {
    const auto pick = [&](const auto& list) { return list[next(state, uint32_t(std::size(list)))]; };
    std::string when = pick(kWhen);
    when[0] = char(when[0] - 'a' + 'A');
    text += fmt::format("{}{} {} {} the {} {}.", i > 0 ? " " : "", when, pick(kWho), pick(kDid), pick(kWhat),
                        fmt::format("near house {}", 1 + next(state, 400)));
  }
  return text;
}

Result<std::vector<std::vector<int32_t>>> matrix_prompts(const Tokenizer& t, Variant variant, const MatrixSet& set,
                                                         int context, int count) {
  std::vector<std::vector<int32_t>> prompts;
  std::vector<int32_t> filler;
  for (int sentences = 64; context > 0 && !set.raw && int(filler.size()) < context; sentences *= 2)
    filler = t.encode(filler_text(sentences), /*add_bos=*/false, /*parse_special=*/false);
  for (size_t i = 0; i < set.prompts.size() && int(i) < count; ++i) {
    std::vector<int32_t> ids, rest;
    if (set.raw) {
      rest = t.encode(set.prompts[i], /*add_bos=*/false, /*parse_special=*/true);
      if (context > 0 && !rest.empty() && rest[0] == t.bos()) ids.push_back(rest[0]), rest.erase(rest.begin());
    } else {
      const auto chat = render_chat({Message{.role = "user", .content = set.prompts[i]}}, {},
                                    {.add_generation_prompt = true, .variant = variant});
      if (!chat) return chat.error();
      const size_t at = chat->rfind(set.prompts[i]);
      if (at == std::string::npos)
        return Error{set.name, fmt::format("prompt {}: it has spaces around it, or ends turns", i + 1), "trim it"};
      ids = t.encode(std::string_view(*chat).substr(0, at), /*add_bos=*/false, /*parse_special=*/true);
      rest = t.encode(fmt::format("{}{}", context > 0 ? "\n\n" : "", chat->substr(at)), /*add_bos=*/false,
                      /*parse_special=*/true);
    }
    const int room = context - int(ids.size() + rest.size());
    if (context > 0 && !set.raw) {
      if (room < 0)
        return Error{"--contexts",
                     fmt::format("expected at least {} tokens for prompt {} of {}, found {}", ids.size() + rest.size(),
                                 i + 1, set.name, context),
                     "use longer contexts, or 0 for prompts as they are"};
      ids.insert(ids.end(), filler.begin(), filler.begin() + room);
    } else if (context > 0) {
      if (room > 0)
        return Error{"--contexts",
                     fmt::format("expected at most {} tokens, what prompt {} of {} has; found {}", context - room,
                                 i + 1, set.name, context),
                     "whole prompts are only cut; use shorter contexts, or 0 for prompts as they are"};
      rest.erase(rest.begin(), rest.begin() - room);
    }
    ids.insert(ids.end(), rest.begin(), rest.end());
    prompts.push_back(std::move(ids));
  }
  return prompts;
}

std::vector<std::vector<int32_t>> random_prompts(int n_vocab, int context, int count) {
  std::vector<std::vector<int32_t>> prompts;
  uint32_t state = 1;
  for (int i = 0; i < count; ++i) {
    prompts.emplace_back(size_t(context > 0 ? context : kRandomTokens));
    for (int32_t& id : prompts.back()) id = int32_t(next(state, uint32_t(n_vocab)));
  }
  return prompts;
}

}  // namespace facet
