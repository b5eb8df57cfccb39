#pragma once
#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "compose/load_model.h"
#include "compose/plan.h"
#include "engine/open_engine.h"
#include "support/harness.h"

// Drafters that know what the target will say, so that tests decide how right drafts are. They also check what the
// engine gives them: every row of features must be, bit for bit, the one that plain decoding has at that position.
namespace facet::test {

inline const std::vector<int> kScriptTaps{1, 3};

template <class Rows>
uint64_t hash_features(const Features<Rows>& f, int t) {
  uint64_t h = 1469598103934665603ull;
  for (const Rows& r : {f.taps, f.final_hidden})
    for (int i = 0; i < r.cols; ++i) {
      uint32_t bits;
      std::memcpy(&bits, r.row(t) + i, 4);
      h = (h ^ bits) * 1099511628211ull;
      h ^= h >> 29;
    }
  return h;
}

// Sequences, and where each row of features belongs.
template <class B>
class Script {
 public:
  struct At {
    int sequence, position;
  };

  Script(const std::string& model, KvType kv, const std::vector<KvOfLayers>& layers = {})
      : h_(model, {.k = kv,
                   .v = kv,
                   .layers = layers,
                   .share = 1,
                   .max_seq = 1,
                   .max_ctx = 1024,
                   .max_step = 64,
                   .margin = 16}) {
    taps_ = h_.backend().new_rows(64, int(kScriptTaps.size()) * h_.cfg.d_model);
    final_ = h_.backend().new_rows(64, h_.cfg.d_model);
  }
  void add(std::span<const int32_t> ids) {
    sequences.emplace_back(ids.begin(), ids.end());
    h_.cache().clear(0);
    const int D = h_.cfg.d_model;
    for (size_t at = 0; at < ids.size();) {
      const size_t n = std::min<size_t>(50, ids.size() - at);
      h_.begin();
      h_.add({.slot = 0, .token = ids.subspan(at, n)});
      std::vector<typename B::Rows> dst;
      for (size_t i = 0; i < kScriptTaps.size(); ++i)
        dst.push_back(taps_.view(int(n), taps_.cols).cols_at(int(i) * D, D));
      h_.runner().forward({.layer = kScriptTaps, .dst = dst, .final_hidden = final_.view(int(n), D)});
      h_.cache().commit(0, int(n));
      for (size_t i = 0; i < n; ++i)
        for (const Features<typename B::Rows>& f :
             {Features<typename B::Rows>{.taps = taps_, .final_hidden = final_}, {.taps = taps_, .final_hidden = {}}})
          rows[hash_features(f, int(i))].push_back({int(sequences.size()) - 1, int(at + i)});
      at += n;
    }
  }
  const std::vector<At>* find(uint64_t hash) const {
    const auto at = rows.find(hash);
    return at == rows.end() ? nullptr : &at->second;
  }

  std::vector<std::vector<int32_t>> sequences;
  std::unordered_map<uint64_t, std::vector<At>> rows;

 private:
  Harness<B> h_;
  typename B::Rows taps_, final_;
};

struct ScriptOptions {
  double wrong = .3;  // probability that a drafted token is not the one that comes
  int max_draft = 15;
  int n_vocab = 96;
  unsigned seed = 1;
  bool right_in_top = true;  // a wrong token's right one is among the candidates
  bool final_hidden = true;  // wants it beside the taps
};
// What the drafter saw; outlives the engine.
struct ScriptReport {
  int absorbs = 0;                // calls
  int absorbed = 0, unknown = 0;  // rows of features; those that no plain pass has at that position
  int proposals = 0, lost = 0;    // rounds; those where the script has nothing to say
  int out_of_order = 0;           // absorbs that do not go on where the state ends
};

// Plain: the backend of the script, whose rows B has too (a planted bug on top of it).
template <class B, class Plain = B>
class ScriptedDrafter : public Drafter<B> {
 public:
  using Rows = typename B::Rows;
  ScriptedDrafter(const Script<Plain>& script, ScriptOptions o, ScriptReport& report, int n_slot)
      : script_(script), o_(o), report_(report), held_(size_t(n_slot)) {}

  const char* name() const override { return "script"; }
  int max_draft() const override { return o_.max_draft; }
  std::span<const int> tap_layers() const override { return kScriptTaps; }
  bool wants_final_hidden() const override { return o_.final_hidden; }

  void absorb(std::span<const Committed> rows, const Features<Rows>& f) override {
    ++report_.absorbs;
    for (const Committed& c : rows) {
      auto& held = held_[size_t(c.slot)];
      report_.out_of_order += c.position != int(held.size());
      for (int i = 0; i < c.n; ++i) {
        const uint64_t h = hash_features(f, c.at(i));
        ++report_.absorbed;
        const auto* at = script_.find(h);
        const bool known =
            at && std::any_of(at->begin(), at->end(), [&](const auto& a) { return a.position == c.position + i; });
        report_.unknown += !known;
        held.push_back(h);
      }
    }
  }

  void propose(std::span<Draft> drafts) override {
    for (Draft& d : drafts) {
      ++report_.proposals;
      const std::vector<int32_t>* says = nullptr;
      if (const auto& held = held_[size_t(d.slot)]; int(held.size()) == d.position && !held.empty())
        if (const auto* at = script_.find(held.back()))
          for (const auto& a : *at) {
            const auto& s = script_.sequences[size_t(a.sequence)];
            if (a.position == d.position - 1 && a.position + 1 < int(s.size()) &&
                s[size_t(a.position) + 1] == d.token[0])
              says = &s;
          }
      report_.lost += says == nullptr;
      for (int i = 0; i < d.max_draft; ++i) {
        const size_t at = size_t(d.position + 1 + i);
        const int32_t right = says && at < says->size() ? (*says)[at] : 0;
        std::mt19937 rng(o_.seed * 7919u + unsigned(at) * 31u + unsigned(right));
        const bool wrong = double(rng()) / 4294967296.0 < o_.wrong;
        const int32_t other = int32_t((unsigned(right) + 1 + rng() % unsigned(o_.n_vocab - 1)) % unsigned(o_.n_vocab));
        d.token.push_back(wrong ? other : right);
        // Candidates: the drafted one, then, when that is wrong, the right one, then others.
        for (int r = 0; r < d.n_top; ++r) {
          const int32_t second = wrong && o_.right_in_top ? right : (other + 7) % o_.n_vocab;
          d.top.push_back(r == 0 ? d.token.back() : r == 1 && second != d.token.back() ? second : -1);
          d.top_log_prob.push_back(r == 0 ? -.4f : -1.2f - float(r));
        }
      }
    }
  }

  int held(SlotId s) const override { return int(held_[size_t(s)].size()); }
  int rewind(SlotId s, int len) override {
    auto& held = held_[size_t(s)];
    held.resize(std::min(held.size(), size_t(len)));
    return int(held.size());
  }
  void forget(SlotId s) override { held_[size_t(s)].clear(); }
  Status fork(SlotId from, SlotId to) override {
    held_[size_t(to)] = held_[size_t(from)];
    return Ok{};
  }
  bool load(SlotId, int, std::span<const float>) override { return false; }

 protected:
  const Script<Plain>& script_;
  ScriptOptions o_;
  ScriptReport& report_;
  std::vector<std::vector<uint64_t>> held_;  // per slot: its rows
};

// Several options: as many drafters.
template <class B, class Plain = B, class Scripted = ScriptedDrafter<B, Plain>>
DrafterFactory<B> scripted(const Script<Plain>& script, std::vector<ScriptOptions> options, ScriptReport& report) {
  return [&script, options, &report](const TargetView<B>& t) -> Result<Drafters<B>> {
    Drafters<B> d;
    for (const ScriptOptions& o : options)
      d.push_back(std::make_unique<Scripted>(script, o, report, t.plan.resident()));
    return d;
  };
}

// An engine on B, with drafters of the test's own.
template <class B>
std::unique_ptr<Engine> open_engine_with(EngineConfig c, const DrafterFactory<B>& drafters) {
  if (drafters) c.draft.files = {"script"};
  LoadedModel model = must(load_model(c.model));
  const EngineConfig decided = must(resolve_config(model.file, model.cfg, c));
  model.drafter_pool_bytes = drafter_pool_bytes(model.file, model.cfg, decided, model.drafters);
  return must(open_engine<B>(std::move(model), decided, drafters, decided.n_threads));
}

struct Answer {
  std::vector<int32_t> tokens;
  Stop why = Stop::kError;
  Usage usage;
  std::string error;
};
inline Sink into(Answer& a) {
  return {
      .tokens = [&a](RequestId, std::span<const int32_t> t) { a.tokens.insert(a.tokens.end(), t.begin(), t.end()); },
      .done = [&a](RequestId, Stop s, const Usage& u, const std::string& e) { a.why = s, a.usage = u, a.error = e; }};
}
// Answers of requests that are submitted together.
inline std::vector<Answer> answers(Engine& e, const std::vector<Request>& requests) {
  std::vector<Answer> a(requests.size());
  for (size_t i = 0; i < requests.size(); ++i) must(e.submit(requests[i], into(a[i])));
  while (e.tick()) {
  }
  return a;
}

}  // namespace facet::test
