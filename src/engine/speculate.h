#pragma once
#include <array>
#include <chrono>
#include <cmath>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "api/engine.h"
#include "engine/constrain.h"
#include "engine/runner.h"
#include "grammar/likely.h"
#include "spec/accept.h"
#include "spec/drafter.h"
#include "spec/length.h"
#include "spec/tree.h"
#include "tokenizer/tokenizer.h"

namespace facet {

template <Backend B>
using Drafters = std::vector<std::unique_ptr<Drafter<B>>>;

// A decoding sequence that takes part in the next step.
struct DraftRequest {
  SlotId slot = 0;
  int position = 0;  // rows in the cache; the newest token comes next
  int32_t newest = 0;
  std::span<const int32_t> history = {};  // the sequence, with the newest token
  int room = 0;                           // drafts that can still become tokens of the answer
  const Tokenizer* stops = nullptr;       // where the answer ends; null: nowhere
  const GrammarState* grammar = nullptr;  // what may come next; null: anything
  GrammarMasks* masks = nullptr;          // with it
  GrammarWork* work = nullptr;            // likewise: what drafts may take of it; once it is over there are no more
  const Tokenizer* tokenizer = nullptr;   // likewise
};

// Why a request with drafters was, or in the end is, decoded plainly; empty: it is not. A few plain tokens before the
// end give up nothing.
inline std::string plain_reason(bool wanted, const Usage& u) {
  constexpr int kGivenUp = 16;  // tokens
  if (!wanted) return "the request asks for plain decoding";
  if (u.methods.empty()) return "the answer ended before a draft was due";
  if (u.methods.back().method != "none") return "";
  if (u.rounds == 0) return "drafts would not pay";
  return u.generated - u.methods.back().at < kGivenUp ? "the last tokens came without drafts"
                                                      : "drafts did not pay and were given up";
}

// Drafters beside an engine: which drafts a step verifies, the features it leaves, and what was learned from it.
template <Backend B>
class Speculator {
 public:
  Speculator(Runner<B>& r, const EngineConfig& c, int n_vocab, Drafters<B> drafters, bool forced)
      : r_(r),
        limits_{.min = c.draft.min, .max = c.draft.max > 0 ? c.draft.max : kUsualMax, .tree = c.draft.tree},
        n_vocab_(n_vocab),
        forced_(forced),
        drafters_(std::move(drafters)),
        step_times_(c.max_seq * (1 + c.draft.rows())),
        draft_times_(drafters_.size()),
        tried_(drafters_.size()),
        rounds_(size_t(r.cache->plan().resident())),
        lane_(rounds_.size(), -1),
        lane_taken_(size_t(c.max_seq)) {
    const KvPlan& kv = r_.cache->plan();
    for (auto& d : drafters_) {
      const auto layers = d->tap_layers();
      layer_.insert(layer_.end(), layers.begin(), layers.end());
      const int cols = int(layers.size()) * r_.m.d_model;
      taps_.push_back(layers.empty() ? Rows{} : r_.b.new_rows(kv.max_step, cols));
      const int most = std::min(waiting_features(cols), kv.max_step);
      waiting_.push_back({.rows = layers.empty() ? Rows{} : r_.b.new_rows(kv.max_seq * most, cols),
                          .most = most,
                          .n = std::vector<int>(rounds_.size())});
      if (d->wants_final_hidden() && !final_hidden_) final_hidden_ = r_.b.new_rows(kv.max_step, r_.m.d_model);
      drafts_.emplace_back(size_t(c.max_seq));
    }
    std::vector<int> most;
    for (auto& d : drafters_) most.push_back(d->max_draft());
    for (Round& round : rounds_) round.chooser = DraftChooser(most, limits_);
    if (!drafters_.empty() && memory_status(r_.b)) measure_steps(1 + c.draft.rows());
  }

  bool has_drafters() const { return !drafters_.empty(); }
  const char* method_name(int m) const { return m < 0 ? "none" : drafters_[size_t(m)]->name(); }

  // What the step's forward pass has to keep.
  Taps<B> taps(int n_tok) {
    dst_.clear();
    for (size_t d = 0; d < drafters_.size(); ++d)
      for (size_t i = 0; i < drafters_[d]->tap_layers().size(); ++i)
        dst_.push_back(taps_[d].view(n_tok, taps_[d].cols).cols_at(int(i) * r_.m.d_model, r_.m.d_model));
    Taps<B> t{.layer = layer_, .dst = dst_, .final_hidden = {}};
    if (final_hidden_) t.final_hidden = final_hidden_.view(n_tok, r_.m.d_model);
    return t;
  }

  // A request runs in the slot, until end().
  void begin(SlotId s) {
    rounds_[size_t(s)].chooser.next_request();
    rounds_[size_t(s)].choice = {};
    const auto lane = std::find(lane_taken_.begin(), lane_taken_.end(), false);
    CHECK(lane != lane_taken_.end() && lane_[size_t(s)] < 0, "slot {} begins, and {} run", s, lane_taken_.size());
    *lane = true;
    lane_[size_t(s)] = int(lane - lane_taken_.begin());
  }
  void end(SlotId s) {
    if (lane_[size_t(s)] < 0) return;  // there was no memory to begin
    settle(s);
    lane_taken_[size_t(std::exchange(lane_[size_t(s)], -1))] = false;
  }

  // Fills tree(slot) of every sequence; node 0 alone where nothing is drafted.
  void propose(std::span<const DraftRequest> requests) {
    std::vector<size_t> n(drafters_.size());
    for (const DraftRequest& q : requests) {
      Round& round = rounds_[size_t(q.slot)];
      round.tree.reset(q.newest);
      round.cut = round.refused = false;
      round.sure.clear();
      round.asked = q.room > 0;
      round.choice = round.chooser.choose(step_times_, draft_times_, q.room, int(requests.size()));
      if (propose_text(q, round, int(requests.size()))) round.choice = {};
      if (round.choice.method < 0) continue;
      const size_t m = size_t(round.choice.method);
      flush(m, q.slot);
      if (drafters_[m]->held(q.slot) != q.position || !drafters_[m]->ready(q.slot)) {  // it has given the sequence up
        round.choice = {};
        continue;
      }
      Draft& d = drafts_[m][n[m]++];
      d.slot = q.slot, d.position = q.position, d.max_draft = round.choice.n;
      d.history = q.history;
      d.n_top = limits_.tree > 0 ? std::min(kTreeTop, limits_.tree) : 1;
      d.token.assign(1, q.newest);
      d.top.clear();
      d.top_log_prob.clear();
    }
    for (size_t m = 0; m < drafters_.size(); ++m) {
      if (n[m] == 0) continue;
      const std::span<Draft> drafts(drafts_[m].data(), n[m]);
      const auto start = Clock::now();
      drafters_[m]->propose(drafts);
      int longest = 1;
      for (const Draft& d : drafts) longest = std::max(longest, d.n_draft());
      draft_times_[m].observe(longest, seconds_since(start));
      for (Draft& d : drafts) plant(d, requests);
    }
  }

  const DraftTree& tree(SlotId s) const { return rounds_[size_t(s)].tree; }
  const char* method(SlotId s) const {
    const Round& r = rounds_[size_t(s)];
    return r.sure.empty() ? method_name(r.choice.method) : "grammar";
  }
  // Something was drafted, though nothing of it may be worth verifying.
  bool drafted(SlotId s) const { return rounds_[size_t(s)].choice.method >= 0 || !rounds_[size_t(s)].sure.empty(); }
  // Tokens on the way from node 0, without it, to the node: what its row's penalties look at.
  std::span<const int32_t> path_to(SlotId s, int node) const {
    const Round& r = rounds_[size_t(s)];
    if (r.tree.is_chain) return std::span(r.tree.token).subspan(1, size_t(node));
    return std::span(r.paths).subspan(size_t(node) * kMaxTreeNodes, size_t(r.tree.depth[size_t(node)]));
  }

  // drawn: the target's token after each node.
  const Accepted& verify(SlotId s, std::span<const int32_t> drawn, Usage& u, int generated) {
    Round& r = rounds_[size_t(s)];
    accept(r.tree, drawn, r.accepted);
    ++u.decode_steps;
    if (drafters_.empty()) return r.accepted;
    if (!r.sure.empty())
      note(u, generated, "grammar");
    else if (r.asked)
      note(u, generated, method_name(r.chooser.decided().method));
    const int offered = deepest(r), kept = r.accepted.n_draft();
    r.chooser.observe(r.choice, offered + int(r.refused && (r.tree.is_chain || offered == 0)), kept, r.cut);
    if (r.tree.size() == 1) return r.accepted;
    for (int k = 0; k < std::min(int(r.sure.size()), kept + 1); ++k) odds_[r.sure[size_t(k)]].observe(k < kept);
    if (r.choice.method >= 0) {
      Tried& t = tried_[size_t(r.choice.method)];
      ++t.rounds, t.right += kept;
    }
    ++u.rounds;
    u.drafted += r.tree.size() - 1;
    u.accepted += kept;
    count(u, offered, kept);
    count(of_method(u, method(s)), offered, kept);
    return r.accepted;
  }

  std::string inactive_reason(bool wanted, const Usage& u) const {
    return drafters_.empty() ? "" : plain_reason(wanted, u);
  }

  // A drafter that was tried often and never right, each told once; -1: none.
  int never_right() {
    for (size_t m = 0; m < tried_.size(); ++m)
      if (tried_[m].rounds >= kNeverRight && tried_[m].right == 0 && !std::exchange(tried_[m].told, true))
        return int(m);
    return -1;
  }

  // A step of decoding sequences only took so long, from its forward pass to the drawn tokens.
  void observe_step(int rows, double seconds) { step_times_.observe(rows, seconds); }

  void absorb(std::span<const Committed> rows) {
    for (size_t d = 0; d < drafters_.size(); ++d) {
      absorbed_.clear();
      for (const Committed& c : rows) {
        const bool later = can_wait(d, c);
        if (!later || waiting_[d].n[size_t(c.slot)] + c.n > waiting_[d].most) flush(d, c.slot);
        if (held(d, c.slot) != c.position) continue;  // it has given the sequence up
        if (later)
          wait(d, c);
        else
          absorbed_.push_back(c);
      }
      if (!absorbed_.empty())
        drafters_[d]->absorb(
            absorbed_, {.taps = taps_[d], .final_hidden = drafters_[d]->wants_final_hidden() ? final_hidden_ : Rows{}});
    }
  }
  // Rows of state that every drafter has after going back.
  int rewind(SlotId s, int len) {
    int least = len;
    for (size_t d = 0; d < drafters_.size(); ++d) {
      int& waiting = waiting_[d].n[size_t(s)];
      waiting = std::clamp(len - drafters_[d]->held(s), 0, waiting);
      least = std::min(least, waiting > 0 ? held(d, s) : drafters_[d]->rewind(s, std::min(len, drafters_[d]->held(s))));
    }
    return least;
  }
  void forget(SlotId s) {
    for (size_t d = 0; d < drafters_.size(); ++d) waiting_[d].n[size_t(s)] = 0, drafters_[d]->forget(s);
  }
  // `to`, which holds nothing, gets the state of `from`, with all features that wait.
  Status fork(SlotId from, SlotId to) {
    for (size_t d = 0; d < drafters_.size(); ++d) {
      flush(d, from);
      if (auto ok = drafters_[d]->fork(from, to); !ok) return ok;
    }
    rounds_[size_t(to)].chooser = rounds_[size_t(from)].chooser;
    return Ok{};
  }
  // Memory of the drafters for the rows [position, position + n), and for the features that wait before them. A drafter
  // that has none when it comes to that gives the sequence up; false: make room first.
  bool prepare(SlotId s, int position, int n) {
    bool ok = true;
    for (size_t d = 0; d < drafters_.size(); ++d) {
      if (held(d, s) != position) continue;  // it has given the sequence up
      ok = drafters_[d]->prepare(s, position + n - drafters_[d]->held(s)) && ok;
    }
    return ok;
  }
  // Features that wait are absorbed where those of n more rows would find no place beside them.
  void make_place(SlotId s, int position, int n) {
    for (size_t d = 0; d < drafters_.size(); ++d)
      if (held(d, s) == position && waiting_[d].n[size_t(s)] + n > waiting_[d].most) flush(d, s);
  }
  // Rows that a draft for which there is so much room takes beside the newest token's.
  int draft_rows(int room) const { return std::min(room, limits_.max); }
  // The drafters take the features that wait.
  void settle(SlotId s) {
    for (size_t d = 0; d < drafters_.size(); ++d) flush(d, s);
  }
  std::span<const std::unique_ptr<Drafter<B>>> drafters() const { return drafters_; }
  bool reaches(SlotId s, int len) const {
    for (const auto& d : drafters_)
      if (KvCache* c = d->rows(); c && c->len(s) > len && !c->reaches(s, len)) return false;
    return true;
  }
  // Pages of the pool, of a sequence with so many rows, and those that forget() would give back.
  int64_t pages(int rows) const {
    int64_t n = 0;
    for (const auto& d : drafters_)
      if (KvCache* c = d->rows()) n += c->pages(rows);
    return n;
  }
  int64_t owned_pages(SlotId s) const {
    int64_t n = 0;
    for (const auto& d : drafters_)
      if (KvCache* c = d->rows()) n += c->owned_pages(s);
    return n;
  }

 private:
  using Clock = std::chrono::steady_clock;
  using Rows = typename B::Rows;
  static constexpr int kUsualMax = 15;  // with node 0 a step of 16 rows
  static constexpr int kTreeTop = 8;
  static constexpr int kNeverRight = 12;  // rounds; one that is right in three of ten has a bad dozen once in seventy
  struct Tried {
    int64_t rounds = 0, right = 0;  // of the engine's life
    bool told = false;
  };
  struct Round {
    DraftChooser chooser;
    DraftChoice choice;
    bool asked = false;    // there was room for a draft
    bool cut = false;      // a chain was not worth verifying to its end
    bool refused = false;  // the grammar forbids the draft behind the last one
    DraftTree tree;
    std::vector<int32_t> paths;  // [node][kMaxTreeNodes]: of a tree that is no chain
    std::vector<bool> sure;      // of each draft that is the grammar's own text; empty: it is a drafter's
    Accepted accepted;
  };
  static double seconds_since(Clock::time_point t) { return std::chrono::duration<double>(Clock::now() - t).count(); }

  // Where the grammar leaves next to no choice, its text is the draft, unless the drafter's is expected to bring more.
  bool propose_text(const DraftRequest& q, Round& round, int n_seq) {
    if (!q.grammar || q.grammar->asleep() || !q.tokenizer || q.room < 1 || forced_) return false;
    std::optional<GrammarWorkScope> scope;
    if (q.work) scope.emplace(*q.work);
    const int most = std::min(q.room, limits_.tree > 0 ? limits_.tree : limits_.max);
    LikelyTokens text = likely_tokens(*q.grammar, q.masks->vocab(), *q.tokenizer, q.history, most);
    for (Odds& o : odds_) o.pass();
    std::vector<float> log_prob;
    for (const bool sure : text.sure) log_prob.push_back(std::log(float(odds_[sure].value())));
    const int worth =
        std::max(worth_verifying(log_prob, step_times_, n_seq), std::min(limits_.min, int(log_prob.size())));
    if (worth < std::max(1, limits_.min)) return false;
    double tokens = 1, survival = 1;
    for (int k = 0; k < worth; ++k) tokens += survival *= odds_[text.sure[size_t(k)]].value();
    const double time = step_times_.at(n_seq * (1 + worth));
    if (round.choice.method >= 0 && tokens < time * round.chooser.rate(round.choice, step_times_, draft_times_, n_seq))
      return false;
    for (int k = 0; k < worth; ++k) round.tree.add(text.token[size_t(k)], k);
    text.sure.resize(size_t(worth));
    round.sure = std::move(text.sure);
    return true;
  }

  // A draft as the tree that is verified: without ids of another vocabulary, and ending before the token that would end
  // the answer, which the row before it draws anyway.
  void plant(Draft& d, std::span<const DraftRequest> requests) {
    const DraftRequest& q = *std::find_if(requests.begin(), requests.end(), [&](auto& r) { return r.slot == d.slot; });
    const Tokenizer* stops = q.stops;
    auto usable = [&](int32_t id) { return id >= 0 && id < n_vocab_ && !(stops && stops->is_eog(id)); };
    size_t n = 1;
    while (n < d.token.size() && n <= size_t(d.max_draft) && usable(d.token[n])) ++n;
    Round& r = rounds_[size_t(d.slot)];
    std::optional<GrammarWorkScope> scope;
    if (q.grammar && q.work) scope.emplace(*q.work);
    if (q.grammar && forced_ && limits_.tree == 0) n = make_legal(d, q);
    // What the grammar forbids is not drawn: it need not be verified.
    if (q.grammar) {
      const size_t may = 1 + q.grammar->accepts(q.masks->vocab(), std::span(d.token).subspan(1, n - 1));
      r.refused = may < n;
      n = may;
    }
    if (d.n_draft() == 0 && d.max_draft > 0) r.refused = true;  // a drafter that had nothing to offer counts as wrong
    if (limits_.tree == 0) {
      const int worth = worth_verifying(std::span(d.top_log_prob).first(std::min(n - 1, d.top_log_prob.size())),
                                        step_times_, int(requests.size()));
      if (const size_t keep = size_t(1 + std::max(worth, limits_.min)); keep < n && !d.top_log_prob.empty() && !forced_)
        n = keep, r.cut = true;
      d.token.resize(n);
      chain_tree(d, d.max_draft, r.tree);
      return;
    }
    for (int32_t& id : d.top)
      if (!usable(id)) id = -1;
    GrammarPath path;
    if (q.grammar) path.states.assign(1, *q.grammar);
    best_first_tree(d, std::min(limits_.tree, r_.cache->plan().max_ctx - q.position - 1), r.tree,
                    q.grammar
                        ? [&](int node, int32_t id) { return path.may_follow(q.masks->vocab(), r.tree, node, id); }
                        : MayFollow{});
    if (!r.tree.is_chain) r.paths.resize(size_t(r.tree.size()) * kMaxTreeNodes);
    for (int i = 1; i < r.tree.size() && !r.tree.is_chain; ++i) {
      const size_t parent = size_t(r.tree.parent[size_t(i)]), len = size_t(r.tree.depth[parent]);
      auto at = r.paths.begin() + ptrdiff_t(size_t(i) * kMaxTreeNodes);
      std::copy_n(r.paths.begin() + ptrdiff_t(parent * kMaxTreeNodes), len, at);
      at[ptrdiff_t(len)] = r.tree.token[size_t(i)];
    }
  }
  // Drafts whose acceptance is forced are as long as they were asked for: others stand in for what the grammar forbids.
  size_t make_legal(Draft& d, const DraftRequest& q) {
    const GrammarVocab& vocab = q.masks->vocab();
    std::vector<uint32_t> mask(vocab.mask_words());
    GrammarState state = *q.grammar;
    d.token.resize(1 + size_t(d.max_draft), 0);
    for (size_t i = 1; i < d.token.size(); ++i) {
      int32_t& id = d.token[i];
      if (vocab.is_eog(id) || state.accepts(vocab, {&id, 1}) == 0) {
        q.masks->mask(state, mask);
        id = allowed_token(mask, vocab, int32_t(uint32_t(q.position + int(i)) * 2654435761u >> 1));
      }
      if (id < 0 || !state.advance(vocab, id)) return i;
    }
    return d.token.size();
  }
  static int deepest(const Round& r) {
    int most = 0;
    for (const int16_t d : r.tree.depth) most = std::max(most, int(d));
    return most;
  }
  // to: of an answer, or of one method in it.
  static void count(auto& to, int offered, int kept) {
    to.offered_at.resize(std::max(to.offered_at.size(), size_t(offered)));
    to.accepted_at.resize(to.offered_at.size());
    for (int k = 0; k < std::min(offered, kept + 1); ++k)
      ++to.offered_at[size_t(k)], to.accepted_at[size_t(k)] += k < kept;
  }
  static Usage::Method& of_method(Usage& u, std::string_view name) {
    const auto at = std::find_if(u.by_method.begin(), u.by_method.end(), [&](const auto& m) { return m.name == name; });
    return at != u.by_method.end() ? *at : u.by_method.emplace_back(Usage::Method{.name = std::string(name)});
  }
  // The grammar's text comes here and there beside a drafter, and goes on where none pays.
  static void note(Usage& u, int generated, std::string_view name) {
    const std::string_view last = u.methods.empty() ? "" : std::string_view(u.methods.back().method);
    if (name == last || (name == "grammar" ? last != "" && last != "none" : name == "none" && last == "grammar"))
      return;
    u.methods.push_back({u.methods.empty() ? 0 : generated, std::string(name)});
  }

  // T(n) for a few n, in slot 0, which is left empty. Slow models are not measured for long: steps tell in time.
  void measure_steps(int most) {
    constexpr double kBudget = .25;
    const std::vector<int32_t> ids(size_t(most), 0);
    const Sampling greedy{.temperature = 0};
    const std::vector<SampleRow> rows(size_t(most), SampleRow{.sampling = &greedy});
    const auto begun = Clock::now();
    bool warm = false;
    for (int n = 1;; n = std::min(2 * n, most)) {
      double best = 0;
      for (int run = warm ? 1 : 0; run < 4 && (run < 2 || seconds_since(begun) < kBudget); ++run) {
        if (!r_.cache->prepare(0, n)) return;
        const auto start = Clock::now();
        r_.steps.begin();
        r_.add({.slot = 0, .token = std::span(ids).first(size_t(n)), .out = Out::kAll});
        const auto logits = r_.forward(taps(n));
        r_.b.sample(r_.ids, logits, std::span(rows).first(size_t(n)));
        (void)r_.ids[0];  // waits for the device
        const double s = seconds_since(start);
        if (run > 0) best = best > 0 ? std::min(best, s) : s;
      }
      warm = true;
      step_times_.observe(n, best);
      if (n == most || seconds_since(begun) > kBudget) break;
    }
    r_.cache->release(0);
  }

  // Features of a drafter that is not asked wait, so that it takes many rows in one go when it is, or when there are
  // many.
  struct Waiting {
    Rows rows{};         // [lanes * most, taps]: a running sequence has a lane
    int most = 0;        // of a lane
    std::vector<int> n;  // per slot
  };
  void wait(size_t d, const Committed& c) {
    Waiting& w = waiting_[d];
    int& n = w.n[size_t(c.slot)];
    const int run = c.path.empty() ? c.n : 1;
    for (int i = 0; i < c.n; i += run, n += run)
      r_.b.copy_rows(w.rows.rows_at(lane_[size_t(c.slot)] * w.most + n, run), taps_[d].rows_at(c.at(i), run));
  }
  void flush(size_t d, SlotId s) {
    Waiting& w = waiting_[d];
    const int n = std::exchange(w.n[size_t(s)], 0);
    if (n == 0) return;
    const Committed c{.slot = s, .position = drafters_[d]->held(s), .row = lane_[size_t(s)] * w.most, .n = n};
    drafters_[d]->absorb({&c, 1}, {.taps = w.rows, .final_hidden = {}});
  }
  int held(size_t d, SlotId s) const { return drafters_[d]->held(s) + waiting_[d].n[size_t(s)]; }
  // The drafter has no use for the rows in the next round, as far as one knows.
  bool can_wait(size_t d, const Committed& c) const {
    return !drafters_[d]->wants_final_hidden() && waiting_[d].rows && rounds_[size_t(c.slot)].choice.method != int(d) &&
           c.n <= waiting_[d].most && lane_[size_t(c.slot)] >= 0;
  }

  Runner<B>& r_;
  DraftLimits limits_;
  int n_vocab_;
  bool forced_;  // the drafter's own opinion means nothing
  Drafters<B> drafters_;
  StepTimes step_times_;
  std::vector<DraftTimes> draft_times_;
  std::array<Odds, 2> odds_;   // of the grammar's own text: where it is not sure, where it is
  std::vector<Tried> tried_;   // per drafter
  std::vector<Round> rounds_;  // per slot
  std::vector<int> lane_;      // per slot; -1: nothing runs there
  std::vector<bool> lane_taken_;
  std::vector<std::vector<Draft>> drafts_;  // per drafter: of one round
  std::vector<Committed> absorbed_;
  std::vector<int> layer_;        // taps of all drafters
  std::vector<Rows> taps_, dst_;  // taps_: per drafter
  std::vector<Waiting> waiting_;
  Rows final_hidden_{};
};

}  // namespace facet
