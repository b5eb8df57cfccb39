#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "engine/speculate.h"
#include "grammar/likely.h"
#include "spec/tree.h"

// What a step verifies of a draft: chains and trees without what cannot be drawn, and what goes on behind them.
namespace facet {

// Where the grammar leaves next to no choice, its text is the draft, unless the drafter's is expected to bring more.
bool Speculator::propose_text(const DraftRequest& q, DraftState& round, int n_seq) {
  if (!q.grammar || q.grammar->asleep() || !q.tokenizer || q.room < 1 || drafts_are_forced_) return false;
  std::optional<GrammarWorkScope> scope;
  if (q.work) scope.emplace(*q.work);
  const int most = std::min(q.room, limits_.tree > 0 ? limits_.tree : limits_.max);
  LikelyTokens text = likely_tokens(*q.grammar, q.masks->vocab(), *q.tokenizer, q.history, most);
  for (HitRate& o : hit_rate_) o.pass();
  std::vector<float> log_prob;
  for (const bool sure : text.sure) log_prob.push_back(std::log(float(hit_rate_[sure].value())));
  const int worth =
      std::max(worth_verifying(log_prob, step_times_, n_seq), std::min(limits_.min, int(log_prob.size())));
  if (worth < std::max(1, limits_.min)) return false;
  double tokens = 1, survival = 1;
  for (int k = 0; k < worth; ++k) tokens += survival *= hit_rate_[text.sure[size_t(k)]].value();
  const double time = step_times_.at(n_seq * (1 + worth));
  if (round.choice.method >= 0 && tokens < time * round.chooser.rate(round.choice, step_times_, draft_times_, n_seq))
    return false;
  double chance = 1;
  for (int k = 0; k < worth; ++k) {
    round.tree.add(text.token[size_t(k)], k);
    round.chance.push_back(float(chance *= hit_rate_[text.sure[size_t(k)]].value()));
  }
  text.sure.resize(size_t(worth));
  round.forced = std::move(text.sure);
  return true;
}

// A draft as the tree that is verified: without ids of another vocabulary, and ending before the token that would end
// the answer, which the row before it draws anyway.
void Speculator::build_tree(Draft& d, const DraftRequest& q) {
  DraftState& r = draft(d.slot);
  std::optional<GrammarWorkScope> scope;
  if (q.grammar && q.work) scope.emplace(*q.work);
  if (!d.parent.empty()) return build_foretold(d, q, r);
  const auto usable = [&](int32_t id) { return id >= 0 && id < n_vocab_ && !(q.stops && q.stops->is_eog(id)); };
  if (limits_.tree == 0) return build_chain(d, q, r);
  for (int32_t& id : d.top)
    if (!usable(id)) id = -1;
  build_branches(d, q, r);
}

void Speculator::build_chain(Draft& d, const DraftRequest& q, DraftState& r) {
  const auto usable = [&](int32_t id) { return id >= 0 && id < n_vocab_ && !(q.stops && q.stops->is_eog(id)); };
  const int own = std::min(d.n_draft(), d.max_draft);
  if (!drafts_are_forced_) extend(d, q);
  size_t n = 1;
  while (n < d.token.size() && n <= size_t(d.max_draft) && usable(d.token[n])) ++n;
  if (q.grammar && drafts_are_forced_) n = make_legal(d, q);
  // What the grammar forbids is not drawn: it need not be verified.
  if (q.grammar) {
    const size_t may = 1 + q.grammar->accepts(q.masks->vocab(), std::span(d.token).subspan(1, n - 1));
    r.refused = may < n;
    n = may;
  }
  if (own == 0 && d.max_draft > 0) r.refused = true;  // a drafter that had nothing to offer counts as wrong
  d.token.resize(n);
  chain_tree(d, d.max_draft, r.tree);
  const int drafts = r.tree.size() - 1;
  r.own = drafts > own ? own : 0;
  const Tried& t = tried_[size_t(r.choice.method)];
  const bool is_sure = !d.confidence.empty();  // of each token, and calibrated
  const int known = std::min(drafts, int(is_sure ? d.confidence.size() : d.top_log_prob.size()));
  if (drafts_are_forced_ || known < drafts) {  // it has no opinion: what it was worth so far
    r.chooser.chances(r.choice.method, drafts, r.chance);
    return;
  }
  float survival = 1;
  for (int k = 0; k < drafts; ++k) {
    survival *= is_sure ? d.confidence[size_t(k)] : std::exp(std::min(0.f, d.top_log_prob[size_t(k)]));
    r.chance.push_back(std::min(1.f, is_sure ? survival : survival * float(t.correction())));
  }
}

// Where a drafter's own tokens end, what followed them before goes on.
void Speculator::extend(Draft& d, const DraftRequest& q) {
  constexpr double kLikely = .5;  // that the own tokens are right, for it to be worth a look
  if (foreteller_ < 0 || d.n_draft() == 0 || d.n_draft() > d.max_draft) return;
  double survival = 1;
  for (const float p : d.top_log_prob) survival *= std::exp(std::min(0.f, p));
  const int most = std::min({limits_.foretold, q.room, ops_.cache().plan().max_ctx - q.position - 1});
  if (survival < kLikely || d.top_log_prob.size() != size_t(d.n_draft()) || most <= d.n_draft()) return;
  d.max_draft = most;
  drafters_[size_t(foreteller_)]->extend(d);
}

// A tree that came as one: its first nodes, without those that cannot be drawn and what follows them.
void Speculator::build_foretold(Draft& d, const DraftRequest& q, DraftState& r) {
  const auto usable = [&](int32_t id) { return id >= 0 && id < n_vocab_ && !(q.stops && q.stops->is_eog(id)); };
  GrammarPath path;
  if (q.grammar) path.states.assign(1, *q.grammar);
  std::vector<float> chances;
  chances_of(d, chances);
  std::vector<int> node(d.token.size(), -1);  // in the tree
  node[0] = 0;
  for (int i = 1; i <= std::min(d.n_draft(), d.max_draft); ++i) {
    const int parent = node[size_t(d.parent[size_t(i)])];
    const int32_t id = d.token[size_t(i)];
    if (parent < 0 || !usable(id)) continue;
    if (q.grammar && !path.may_follow(q.masks->vocab(), r.tree, parent, id)) {
      r.refused = true;
      continue;
    }
    node[size_t(i)] = r.tree.add(id, parent);
    r.chance.push_back(chances[size_t(i) - 1]);
  }
}

// The likeliest branches that the grammar allows.
void Speculator::build_branches(Draft& d, const DraftRequest& q, DraftState& r) {
  GrammarPath path;
  if (q.grammar) path.states.assign(1, *q.grammar);
  best_first_tree(d, std::min(limits_.tree, ops_.cache().plan().max_ctx - q.position - 1), r.tree,
                  q.grammar ? [&](int node, int32_t id) { return path.may_follow(q.masks->vocab(), r.tree, node, id); }
                            : MayFollow{});
  r.chance.assign(size_t(r.tree.size() - 1), 1);
}

// The tokens on the way to each node of a tree that is no chain.
void Speculator::write_paths(DraftState& r) {
  if (!r.tree.is_chain) r.paths.resize(size_t(r.tree.size()) * kMaxTreeNodes);
  for (int i = 1; i < r.tree.size() && !r.tree.is_chain; ++i) {
    const size_t parent = size_t(r.tree.parent[size_t(i)]), len = size_t(r.tree.depth[parent]);
    auto at = r.paths.begin() + ptrdiff_t(size_t(i) * kMaxTreeNodes);
    std::copy_n(r.paths.begin() + ptrdiff_t(parent * kMaxTreeNodes), len, at);
    at[ptrdiff_t(len)] = r.tree.token[size_t(i)];
  }
}

// Drafts whose acceptance is forced are as long as they were asked for: others stand in for what the grammar forbids.
size_t Speculator::make_legal(Draft& d, const DraftRequest& q) {
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

}  // namespace facet
