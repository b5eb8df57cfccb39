// Fields that several dialects have.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "server/api_fields.h"
#include "server/openai.h"

namespace facet {
namespace {

// OpenAI's object of ids, or llama-server's array of pairs. What is no id is text: each of its tokens is meant.
class BiasReader {
 public:
  BiasReader(Fields& f, ApiRequest& r, const ApiDefaults& d) : f_(f), d_(d), out_(r.sampling.logit_bias) {}

  void read() {
    const Json* v = f_.get("logit_bias");
    if (!v) return;
    if (!v->is_object() && !v->is_array())
      return f_.fail("logit_bias", "expected an object of token ids and numbers", v);
    if (v->size() > kMaxBias) return too_many(v->size());
    out_.clear();
    if (v->is_object()) {
      for (auto it = v->begin(); it != v->end(); ++it) entry(it.key(), it.value(), "logit_bias." + it.key());
      return;
    }
    for (size_t i = 0; i < v->size(); ++i) {
      const Json& pair = (*v)[i];
      const std::string at = fmt::format("logit_bias[{}]", i);
      if (!pair.is_array() || pair.size() != 2 || !(pair[0].is_string() || pair[0].is_number()))
        return f_.fail(at, "expected [token id or text, number]", &pair);
      if (pair[0].is_string()) {
        entry(pair[0].get_ref<const std::string&>(), pair[1], at);
      } else if (const auto id = Fields::whole(pair[0], 0, d_.n_vocab - 1)) {
        add({int32_t(*id)}, pair[1], at);
      } else {
        return f_.fail(at, fmt::format("expected a token id in [0, {})", d_.n_vocab), &pair[0]);
      }
    }
  }

 private:
  void too_many(size_t n) {
    f_.fail(Error{"logit_bias", fmt::format("expected at most {} entries, found {}", kMaxBias, n), ""});
  }
  void entry(const std::string& key, const Json& value, const std::string& at) {
    int id = -1;
    const auto [end, ec] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (ec == std::errc() && end == key.data() + key.size() && id >= 0 && id < d_.n_vocab) return add({id}, value, at);
    const bool number = key.empty() || key.find_first_not_of("-0123456789") == std::string::npos;
    if (number || !d_.tokenize || key.size() > kMaxStopBytes)
      return f_.fail(
          Error{"logit_bias",
                fmt::format("expected token ids in [0, {}) or text of at most {} bytes as keys, found \"{}\"",
                            d_.n_vocab, kMaxStopBytes, cut(key, 40)),
                ""});
    add(d_.tokenize(key), value, at);
  }
  void add(const std::vector<int32_t>& ids, const Json& value, const std::string& at) {
    const bool never = value == false;  // llama-server's way to forbid a token
    if (!never && (!value.is_number() || !(std::abs(value.get<double>()) <= 100)))
      return f_.fail(at, "expected a number in [-100, 100]", &value);
    if (out_.size() + ids.size() > kMaxBias) return too_many(out_.size() + ids.size());
    for (const int32_t id : ids) out_.emplace_back(id, never ? -1e9f : float(value.get<double>()));
  }

  Fields& f_;
  const ApiDefaults& d_;
  std::vector<std::pair<int32_t, float>>& out_;
};

void read_ends(Fields& f, ApiRequest& r, const ApiDefaults& d) {
  f.integer("min_tokens", 0, kMaxTokens, r.min_tokens);
  f.integer("max_loops", 0, kMaxLoops, r.max_loops);
  const Json* v = f.get("stop_token_ids");
  if (!v) return;
  if (!v->is_array() || v->size() > kMaxStops)
    return f.fail("stop_token_ids", fmt::format("expected an array of at most {} token ids", kMaxStops), v);
  for (size_t i = 0; i < v->size(); ++i) {
    const auto id = Fields::whole((*v)[i], 0, d.n_vocab - 1);
    if (!id)
      return f.fail(fmt::format("stop_token_ids[{}]", i), fmt::format("expected a token id in [0, {})", d.n_vocab),
                    &(*v)[i]);
    r.stop_ids.push_back(int32_t(*id));
  }
}

// Drafts change no text: a client can do without them, and that is all.
void read_draft(Fields& f, ApiRequest& r) {
  if (const Json* v = f.get("draft")) {
    if (*v != "none" && *v != "auto") return f.fail("draft", "expected \"none\" or \"auto\"", v);
    r.draft = *v == "auto";
  }
  f.integer("speculative.n_max", -1, kMaxTokens, r.max_draft);
  if (const Json* v = f.get("speculative")) {
    Fields o(*v, /*strict=*/false, "speculative");
    o.integer("n_max", -1, kMaxTokens, r.max_draft);
    f.check(o.done());
  }
  if (r.max_draft == 0) r.draft = false;
}

// llama-server's names. Breakers are texts; what counts are the tokens that hold one.
void read_dry(Fields& f, Sampling& s, const ApiDefaults& d) {
  f.number("dry_multiplier", 0, 100, s.dry_multiplier);
  f.number("dry_base", 1, 100, s.dry_base);
  f.integer("dry_allowed_length", 1, kMaxTokens, s.dry_allowed_length);
  f.integer("dry_penalty_last_n", -1, kMaxTokens, s.dry_last_n);
  const Json* v = f.get("dry_sequence_breakers");
  if (f.failed() || !s.uses_dry()) return;
  const Json usual = Json::array({"\n", ":", "\"", "*"});
  const Json& breakers = v ? *v : usual;
  if (!breakers.is_array() || breakers.size() > kMaxBreakers)
    return f.fail("dry_sequence_breakers", fmt::format("expected an array of at most {} texts", kMaxBreakers), v);
  auto ids = std::make_shared<std::vector<int32_t>>();
  for (const Json& b : breakers) {
    if (!b.is_string() || b.get_ref<const std::string&>().empty() ||
        b.get_ref<const std::string&>().size() > kMaxStopBytes)
      return f.fail("dry_sequence_breakers", fmt::format("expected texts of 1 to {} bytes", kMaxStopBytes), &b);
    if (!d.tokens_with) continue;
    const auto more = d.tokens_with(b.get_ref<const std::string&>());
    ids->insert(ids->end(), more.begin(), more.end());
  }
  std::sort(ids->begin(), ids->end());
  s.dry_breakers = std::move(ids);
}

}  // namespace

void read_stop(Fields& f, ApiRequest& r, const char* key) {
  const Json* v = f.get(key);
  if (!v) return;
  auto add = [&](const Json& s, const std::string& at) {
    if (!s.is_string() || s.get_ref<const std::string&>().size() > kMaxStopBytes)
      return f.fail(at, fmt::format("expected a string of at most {} bytes", kMaxStopBytes), &s);
    if (!s.get_ref<const std::string&>().empty()) r.stop.push_back(s.get<std::string>());  // an empty one ends nothing
  };
  if (!v->is_array()) return add(*v, key);
  if (v->size() > kMaxStops)
    return f.fail(Error{key, fmt::format("expected at most {} strings, found {}", kMaxStops, v->size()), ""});
  for (size_t i = 0; i < v->size(); ++i) add((*v)[i], fmt::format("{}[{}]", key, i));
}

void read_sampling(Fields& f, ApiRequest& r, const ApiDefaults& d) {
  r.sampling = d.sampling;
  r.seed_given = d.seed_given;
  Sampling& s = r.sampling;
  f.number("temperature", 0, 100, s.temperature);
  f.number("top_p", 0, 1, s.top_p);
  f.number("min_p", 0, 1, s.min_p);
  f.integer("top_k", -1, kMaxTokens, s.top_k);
  f.number("presence_penalty", -100, 100, s.presence_penalty);
  f.number("frequency_penalty", -100, 100, s.frequency_penalty);
  for (const char* key : {"repeat_penalty", "repetition_penalty"})  // llama-server's name and vLLM's
    f.number(key, .01, 100, s.repeat_penalty);
  f.integer("repeat_last_n", -1, kMaxTokens, s.repeat_last_n);
  if (const Json* v = f.get("seed")) {
    const auto n = Fields::whole(*v, -1, std::numeric_limits<int64_t>::max());
    if (!n)
      f.fail("seed", "expected an integer from 0 on, or -1 for a random one", v);
    else if ((r.seed_given = *n >= 0))
      s.seed = uint64_t(*n);
  }
  BiasReader(f, r, d).read();
  read_dry(f, s, d);
  f.number("xtc_probability", 0, 1, s.xtc_probability);
  f.number("xtc_threshold", 0, 1, s.xtc_threshold);
}

void read_limits(Fields& f, ApiRequest& r, const ApiDefaults& d) {
  f.boolean("ignore_eos", r.ignore_eos);
  read_ends(f, r, d);
  f.boolean("cache_prompt", r.cache);
  f.string("cache_salt", r.cache_salt);
  if (r.cache_salt.size() > kMaxSaltBytes)
    f.fail(Error{"cache_salt", fmt::format("expected at most {} bytes, found {}", kMaxSaltBytes, r.cache_salt.size()),
                 ""});
  f.boolean("sparse_prefill", r.sparse_prefill);
  f.integer("priority", -kMaxPriority, kMaxPriority, r.priority);
  read_draft(f, r);
  f.boolean("timings_per_token", r.timings_per_token);
  f.boolean("return_progress", r.return_progress);
  r.verbose = d.verbose;
  f.boolean("verbose", r.verbose);
}

void read_effort(Fields& f, ApiRequest& r, const char* key, const Json* v) {
  struct Effort {
    const char* name;
    int budget;
  };
  constexpr Effort kEfforts[] = {{"none", 0},  {"minimal", 256}, {"low", 1024}, {"medium", 4096},
                                 {"high", -1}, {"xhigh", -1},    {"max", -1}};
  for (const Effort& e : kEfforts)
    if (*v == e.name) {
      r.thinking = e.budget != 0;
      r.thought_budget = r.thinking ? e.budget : -1;
      return;
    }
  f.fail(key, "expected none, minimal, low, medium, high, xhigh or max", v);
}

void read_thought_budget(Fields& f, ApiRequest& r, std::initializer_list<const char*> keys) {
  const char* given = nullptr;
  for (const char* key : keys) {
    if (!f.has(key)) continue;
    int n = -1;
    f.integer(key, -1, kMaxTokens, n);
    if (given && n != r.thought_budget)
      return f.fail(key, fmt::format("expected the same value as {}", given), f.get(key));
    r.thought_budget = n;
    given = key;
  }
  if (r.thought_budget == 0) r.thinking = false, r.thought_budget = -1;
}

void Dropped::add(int Dropped::*count, std::string_view name) {
  constexpr size_t kMostNames = 8;
  ++(this->*count);
  const std::string kind = cut(name, 40);
  if (names.size() < kMostNames && std::find(names.begin(), names.end(), kind) == names.end()) names.push_back(kind);
}

bool is_type_name(std::string_view type) {
  constexpr size_t kLongest = 64;
  return !type.empty() && type.size() <= kLongest &&
         type.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_") == std::string_view::npos;
}

}  // namespace facet
