#include "engine/speculate.h"

#include <algorithm>
#include <chrono>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "spec/tree.h"

namespace facet {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int kUsualMax = 15;  // with node 0 a step of 16 rows
constexpr int kTreeTop = 8;
constexpr int kNeverRight = 12;  // rounds; one that is right in three of ten has a bad dozen once in seventy

double seconds_since(Clock::time_point t) { return std::chrono::duration<double>(Clock::now() - t).count(); }

int deepest(const DraftTree& tree) {
  int most = 0;
  for (const int16_t d : tree.depth) most = std::max(most, int(d));
  return most;
}

// to: of an answer, or of one method in it.
void count(auto& to, int offered, int kept) {
  to.offered_at.resize(std::max(to.offered_at.size(), size_t(offered)));
  to.accepted_at.resize(to.offered_at.size());
  for (int k = 0; k < std::min(offered, kept + 1); ++k)
    ++to.offered_at[size_t(k)], to.accepted_at[size_t(k)] += k < kept;
}

Usage::Method& of_method(Usage& u, std::string_view name) {
  const auto at = std::find_if(u.by_method.begin(), u.by_method.end(), [&](const auto& m) { return m.name == name; });
  return at != u.by_method.end() ? *at : u.by_method.emplace_back(Usage::Method{.name = std::string(name)});
}

// The grammar's text and what was said before come here and there beside a drafter, and go on where none pays.
void note(Usage& u, int generated, std::string_view name) {
  const auto is_sporadic = [](std::string_view n) { return n == "grammar" || n == "suffix"; };
  const std::string_view last = u.methods.empty() ? "" : std::string_view(u.methods.back().method);
  if (name == last || (is_sporadic(name) ? last != "" && last != "none" : name == "none" && is_sporadic(last))) return;
  u.methods.push_back({u.methods.empty() ? 0 : generated, std::string(name)});
}

}  // namespace

std::string plain_reason(bool wanted, const Usage& u) {
  constexpr int kGivenUp = 16;  // tokens
  if (!wanted) return "the request asks for plain decoding";
  if (u.methods.empty()) return "the answer ended before a draft was due";
  if (u.methods.back().method != "none") return "";
  if (u.rounds == 0) return "drafts would not pay";
  return u.generated - u.methods.back().at < kGivenUp ? "the last tokens came without drafts"
                                                      : "drafts did not pay and were given up";
}

Speculator::Speculator(DeviceOps& ops, const EngineConfig& c, std::span<Sequence> sequences, bool drafts_are_forced)
    : ops_(ops),
      drafters_(ops.drafters()),
      sequences_(sequences),
      limits_{.min = c.draft.min,
              .max = c.draft.max > 0 ? c.draft.max : kUsualMax,
              .tree = c.draft.tree,
              .foretold = c.draft.rows()},
      n_vocab_(ops.model().n_vocab),
      optional_(c.draft.optional),
      drafts_are_forced_(drafts_are_forced),
      branches_(!drafts_are_forced && (c.draft.tree > 0 || c.backend != "cuda")),
      step_times_(c.max_seq * (1 + c.draft.rows())),
      draft_times_(drafters_.size()),
      tried_(drafters_.size()),
      buffer_taken_(size_t(c.max_seq)),
      drafts_(drafters_.size(), std::vector<Draft>(size_t(c.max_seq))),
      committed_tokens_(sequences.size()) {
  std::vector<int> most;
  for (const AnyDrafter* d : drafters_) {
    if (d->foretells()) foreteller_ = int(most.size());
    most.push_back(d->max_draft());
  }
  for (Sequence& q : sequences_)
    q.draft = {.chooser = DraftChooser(most, limits_, foreteller_), .waiting = std::vector<int>(most.size())};
  if (!drafters_.empty() && ops_.memory()) measure_steps(1 + c.draft.rows());
}

void Speculator::begin(SlotId s, const std::string* owner) {
  DraftState& d = draft(s);
  if (foreteller_ >= 0 && owner) drafters_[size_t(foreteller_)]->begin(s, *owner);
  if (d.chooser.knows_nothing() && newest_ >= 0) d.chooser = draft(newest_).chooser;
  newest_ = s;
  d.chooser.next_request();
  d.choice = {};
  const auto free = std::find(buffer_taken_.begin(), buffer_taken_.end(), false);
  CHECK(free != buffer_taken_.end() && d.feature_buffer < 0, "slot {} begins, and {} run", s, buffer_taken_.size());
  *free = true;
  d.feature_buffer = int(free - buffer_taken_.begin());
}

void Speculator::end(SlotId s, std::span<const int32_t> answer) {
  if (foreteller_ >= 0) drafters_[size_t(foreteller_)]->end(s, answer);
  if (draft(s).feature_buffer < 0) return;  // there was no memory to begin
  flush(s);
  buffer_taken_[size_t(std::exchange(draft(s).feature_buffer, -1))] = false;
}

void Speculator::begin_draft(const DraftRequest& q, Draft& d, int most) const {
  d.slot = q.slot, d.position = q.position, d.max_draft = most;
  d.history = q.history;
  d.n_top = limits_.tree > 0 ? std::min(kTreeTop, limits_.tree) : 1;
  d.token.assign(1, q.newest);
  d.max_depth = 0, d.branches = false;
  d.parent.clear();
  d.top.clear();
  d.top_log_prob.clear();
  d.confidence.clear();
}

// What would be drafted without a model: the chance of each of its tokens; empty: nothing.
std::span<const float> Speculator::foretell(const DraftRequest& q, Draft& d) {
  AnyDrafter& f = *drafters_[size_t(foreteller_)];
  begin_draft(q, d, q.room < 1 ? 0 : std::min(limits_.foretold, ops_.cache().plan().max_ctx - q.position - 1));
  d.max_depth = q.room;
  d.branches = branches_;
  if (d.max_draft < 1 || f.held(q.slot) + draft(q.slot).waiting[size_t(foreteller_)] != q.position) return {};
  const auto start = Clock::now();
  f.propose({&d, 1});
  draft_times_[size_t(foreteller_)].observe(1, seconds_since(start));
  return chances_of(d, foretold_);
}

void Speculator::propose(std::span<const DraftRequest> requests) {
  std::vector<size_t> n(drafters_.size());
  for (const DraftRequest& q : requests) {
    DraftState& round = draft(q.slot);
    round.tree.reset(q.newest);
    round.chance.clear();
    round.own = 0;
    round.cut = round.refused = false;
    round.forced.clear();
    round.asked = q.room > 0;
    std::span<const float> offer;
    if (foreteller_ >= 0) offer = foretell(q, drafts_[size_t(foreteller_)][n[size_t(foreteller_)]]);
    round.choice = round.chooser.choose(step_times_, draft_times_, q.room, int(requests.size()), offer,
                                        requests.size() > 1 ? round_ : kAlone);
    if (propose_text(q, round, int(requests.size()))) round.choice = {};
    if (round.choice.method < 0) continue;
    const size_t m = size_t(round.choice.method);
    flush(m, q.slot);
    if (drafters_[m]->held(q.slot) != q.position || !drafters_[m]->ready(q.slot)) {  // it has given the sequence up
      round.choice = {};
      continue;
    }
    Draft& d = drafts_[m][n[m]++];
    if (round.choice.method == foreteller_)
      d.max_draft = round.choice.n;  // it is written already
    else
      begin_draft(q, d, round.choice.n);
  }
  ++round_;
  double spent = 0;
  for (size_t m = 0; m < drafters_.size(); ++m) {
    if (n[m] == 0) continue;
    const std::span<Draft> drafts(drafts_[m].data(), n[m]);
    if (int(m) != foreteller_) {
      const auto start = Clock::now();
      drafters_[m]->propose(drafts);
      int longest = 1;
      for (const Draft& d : drafts) longest = std::max(longest, d.n_draft());
      draft_times_[m].observe(longest, seconds_since(start));
      spent += seconds_since(start);
    }
    for (Draft& d : drafts)
      build_tree(d, *std::find_if(requests.begin(), requests.end(), [&](auto& r) { return r.slot == d.slot; }));
  }
  admit(requests, spent);
  for (const DraftRequest& q : requests) write_paths(draft(q.slot));
}

// Of all that was drafted, what the step verifies.
void Speculator::admit(std::span<const DraftRequest> requests, double spent) {
  batch_.clear();
  bool any = false;
  for (const DraftRequest& q : requests) {
    const DraftState& r = draft(q.slot);
    // A tree of a drafter's candidates is as large as was asked for.
    const bool whole = limits_.tree > 0 && r.choice.method >= 0 && r.choice.method != foreteller_;
    batch_.push_back({.chance = r.chance, .least = whole ? r.tree.size() - 1 : limits_.min});
    any = any || !r.chance.empty();
  }
  if (!any) return;
  const std::vector<int> taken = admit_drafts(batch_, step_times_, spent);
  for (size_t i = 0; i < requests.size(); ++i) {
    DraftState& r = draft(requests[i].slot);
    const int n = r.tree.size() - 1;
    if (taken[i] >= n) continue;
    // What the others leave no time for is not as good as wrong, but nothing at all is: the time to draft it was lost.
    r.cut = requests.size() == 1 || taken[i] == 0;
    cut(r, taken[i]);
  }
}

// The first n drafts alone.
void Speculator::cut(DraftState& r, int n) {
  const size_t nodes = size_t(n) + 1;
  r.tree.token.resize(nodes), r.tree.parent.resize(nodes), r.tree.depth.resize(nodes);
  r.chance.resize(size_t(n));
  r.tree.is_chain = true;
  for (size_t i = 1; i < nodes; ++i) r.tree.is_chain &= r.tree.parent[i] == int(i) - 1;
  if (!r.forced.empty()) r.forced.resize(size_t(n));
}

const char* Speculator::method(SlotId s) const {
  return draft(s).forced.empty() ? method_name(draft(s).choice.method) : "grammar";
}

std::span<const int32_t> Speculator::path_to(SlotId s, int node) const {
  const DraftState& r = draft(s);
  if (r.tree.is_chain) return std::span(r.tree.token).subspan(1, size_t(node));
  return std::span(r.paths).subspan(size_t(node) * kMaxTreeNodes, size_t(r.tree.depth[size_t(node)]));
}

const Accepted& Speculator::verify(SlotId s, std::span<const int32_t> drawn, Usage& u, int generated) {
  DraftState& r = draft(s);
  accept(r.tree, drawn, r.accepted);
  ++u.decode_steps;
  if (drafters_.empty()) return r.accepted;
  if (!r.forced.empty())
    note(u, generated, "grammar");
  else if (r.asked)
    note(u, generated, method_name(r.chooser.decided().method));
  const int offered = deepest(r.tree), kept = r.accepted.n_draft();
  // What was added behind a drafter's own tokens says nothing of it.
  const int own = r.own > 0 ? std::min(offered, r.own) : offered;
  r.chooser.observe(r.choice, own + int(r.refused && (r.tree.is_chain || offered == 0)), std::min(own, kept), r.cut);
  if (r.tree.size() == 1) return r.accepted;
  for (int k = 0; k < std::min(int(r.forced.size()), kept + 1); ++k) hit_rate_[r.forced[size_t(k)]].observe(k < kept);
  if (r.choice.method >= 0) {
    Tried& t = tried_[size_t(r.choice.method)];
    ++t.rounds, t.right += kept;
    double expected = 0;
    for (const float c : r.chance) expected += double(c);
    if (r.choice.method != foreteller_ && limits_.tree == 0 && !drafts_are_forced_)
      t.compare(expected / t.correction(), kept);
  }
  ++u.rounds;
  u.drafted += r.tree.size() - 1;
  u.accepted += kept;
  count(u, offered, kept);
  count(of_method(u, method(s)), offered, kept);
  return r.accepted;
}

int Speculator::never_right() {
  for (size_t m = 0; m < tried_.size(); ++m)
    if (int(m) != foreteller_ && tried_[m].rounds >= kNeverRight && tried_[m].right == 0 &&
        !std::exchange(tried_[m].reported, true))
      return int(m);
  return -1;
}

// --- features

void Speculator::absorb(std::span<const Committed> rows) {
  for (size_t d = 0; d < drafters_.size(); ++d) {
    absorbed_.clear();
    for (const Committed& c : rows) {
      const bool waits = can_wait(d, c);
      if (!waits || draft(c.slot).waiting[d] + c.n > ops_.buffer_rows(d)) flush(d, c.slot);
      if (reached(d, c.slot) != c.position) continue;  // it has given the sequence up
      if (waits)
        keep_features(d, c);
      else {
        absorbed_.push_back(c);
        absorbed_.back().token = tokens_of(c.slot, c.position, c.n);
      }
    }
    if (!absorbed_.empty()) ops_.absorb(d, absorbed_);
  }
}

// Of rows that are in the cache, or will be when the step is over: then some are what it drew. 0 for rows behind the end
// of an answer, which are given up.
std::span<const int32_t> Speculator::tokens_of(SlotId s, int position, int n) {
  const Sequence& q = sequences_[size_t(s)];
  std::vector<int32_t>& all = committed_tokens_[size_t(s)];
  all.clear();
  for (size_t p = size_t(position); p < size_t(position + n); ++p) {
    const size_t drawn = p - std::min(p, q.tokens.size());
    all.push_back(p < q.tokens.size() ? q.tokens[p] : drawn < q.drawn.size() ? q.drawn[drawn] : 0);
  }
  return all;
}

// Features of a drafter that is not asked wait, so that it takes many rows in one go when it is, or when there are many:
// the drafter has no use for the rows in the next round, as far as one knows.
bool Speculator::can_wait(size_t d, const Committed& c) const {
  const DraftState& q = draft(c.slot);
  return c.n <= ops_.buffer_rows(d) && q.choice.method != int(d) && q.feature_buffer >= 0;
}

void Speculator::keep_features(size_t d, const Committed& c) {
  DraftState& q = draft(c.slot);
  const int run = c.path.empty() ? c.n : 1;
  for (int i = 0; i < c.n; i += run, q.waiting[d] += run)
    ops_.buffer_features(d, q.feature_buffer * ops_.buffer_rows(d) + q.waiting[d], c.at(i), run);
}

void Speculator::flush(size_t d, SlotId s) {
  const int n = std::exchange(draft(s).waiting[d], 0);
  if (n == 0) return;
  const int held = drafters_[d]->held(s);
  ops_.absorb_buffered(d, {.slot = s,
                           .position = held,
                           .row = draft(s).feature_buffer * ops_.buffer_rows(d),
                           .n = n,
                           .token = tokens_of(s, held, n)});
}

void Speculator::flush(SlotId s) {
  for (size_t d = 0; d < drafters_.size(); ++d) flush(d, s);
}

bool Speculator::prepare(SlotId s, int position, int n) {
  bool ok = true;
  for (size_t d = 0; d < drafters_.size(); ++d) {
    if (reached(d, s) != position) continue;  // it has given the sequence up
    ok = drafters_[d]->prepare(s, position + n - drafters_[d]->held(s)) && ok;
  }
  return ok;
}

void Speculator::make_place(SlotId s, int position, int n) {
  for (size_t d = 0; d < drafters_.size(); ++d)
    if (reached(d, s) == position && draft(s).waiting[d] + n > ops_.buffer_rows(d)) flush(d, s);
}

// T(n) for a few n, in slot 0, which is left empty. Slow models are not measured for long: steps tell in time.
void Speculator::measure_steps(int most) {
  constexpr double kBudget = .25;
  const std::vector<int32_t> ids(size_t(most), 0);
  const Sampling greedy{.temperature = 0};
  const std::vector<SampleRow> rows(size_t(most), SampleRow{.sampling = &greedy});
  const auto begun = Clock::now();
  bool warm = false;
  for (int n = 1;; n = std::min(2 * n, most)) {
    double best = 0;
    for (int run = warm ? 1 : 0; run < 4 && (run < 2 || seconds_since(begun) < kBudget); ++run) {
      if (!ops_.cache().prepare(0, n)) return;
      const auto start = Clock::now();
      ops_.steps().begin();
      ops_.add({.slot = 0, .token = std::span(ids).first(size_t(n)), .out = Out::kAll});
      ops_.forward(/*with_features=*/true);
      ops_.sample(std::span(rows).first(size_t(n)));
      int32_t first;
      ops_.read_ids({&first, 1});  // waits for the device
      const double s = seconds_since(start);
      if (run > 0) best = best > 0 ? std::min(best, s) : s;
    }
    warm = true;
    step_times_.observe(n, best);
    if (n == most || seconds_since(begun) > kBudget) break;
  }
  ops_.cache().release(0);
}

}  // namespace facet
