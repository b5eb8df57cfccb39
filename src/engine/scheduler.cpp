#include "engine/scheduler.h"

#include <algorithm>
#include <cmath>

#include "backend/step.h"

namespace facet {

void skip_unmapped(std::vector<SeqDemand>& demands) {
  bool answers = false;
  for (const SeqDemand& d : demands) {
    if (d.unmapped) continue;
    if (d.pending > kSmallT) return;
    answers |= d.decoding;
  }
  if (answers) std::erase_if(demands, [](const SeqDemand& d) { return d.unmapped; });
}
namespace {
constexpr double kForget = .9;   // of a measurement's weight, per measurement after it
constexpr double kOutlier = 4;   // the most that one counts over what was expected: another program ran in between
constexpr double kSpread = .02;  // of the mean, squared: less says nothing about other lengths
}  // namespace

void PromptTimes::observe(int n_prompt, double seconds) {
  if (n_prompt <= 0 || seconds <= 0) return;
  if (w_ > 0) seconds = std::min(seconds, kOutlier * t_ / w_ * std::max(1., n_prompt * w_ / n_));
  for (double* x : {&w_, &n_, &nn_, &t_, &nt_}) *x *= kForget;
  const double n = n_prompt;
  w_ += 1, n_ += n, nn_ += n * n, t_ += seconds, nt_ += n * seconds;
  newest_ = n_prompt;
}

int PromptTimes::fit(double seconds) const {
  if (w_ == 0) return 0;
  const double mean_n = n_ / w_, mean_t = t_ / w_, spread = nn_ / w_ - mean_n * mean_n;
  double slope = mean_t / mean_n;
  if (spread > kSpread * mean_n * mean_n) slope = std::clamp((nt_ / w_ - mean_n * mean_t) / spread, slope / 16, slope);
  const double n = mean_n + (seconds - mean_t) / slope;
  return int(std::clamp(n, 1., 2. * newest_));
}

int Scheduler::prompt_budget(int n_decoding) const {
  const int room = std::max(0, chunk_ - n_decoding);
  if (n_decoding == 0 || max_stall_ <= 0) return room;
  const int fit = times_.fit(max_stall_);
  return std::min(room, std::max(fit > 0 ? fit : kFirstPrompt, kLeastPrompt));
}

int64_t Scheduler::passed(uint64_t arrival) const {
  const auto at = passed_.find(arrival);
  return at == passed_.end() ? 0 : at->second;
}

// budget: tokens that the step should still take at most; room: that it can, and could before any prompt. Where answers
// leave no room for a block, prompts are cut as they come.
int Scheduler::grant(int pending, int budget, int room, int all_room) const {
  const int n = std::min(pending, std::max(0, budget));
  if (block_ == 0 || n == 0 || pending < block_ || all_room < block_) return n;
  return room < block_ ? 0 : std::max(n / block_, 1) * block_;
}

std::vector<SeqGrant> Scheduler::schedule(std::span<const SeqDemand> demands) {
  std::vector<SeqGrant> grants;
  std::vector<const SeqDemand*> prompts;
  int n_decoding = 0;
  for (const SeqDemand& d : demands) {
    if (d.pending == 0) continue;
    if (!d.decoding) prompts.push_back(&d);
    if (!d.decoding || n_decoding == chunk_) continue;
    grants.push_back({d.id, 1});
    ++n_decoding;
  }
  std::sort(prompts.begin(), prompts.end(), [&](const SeqDemand* a, const SeqDemand* b) {
    if (a->priority != b->priority) return a->priority < b->priority;
    const int64_t x = a->pending - passed(a->arrival), y = b->pending - passed(b->arrival);
    // By arrival among those that are due: else many that come together, each shorter than the one before, would age
    // together and all go first.
    if (x <= 0 && y <= 0) return a->arrival < b->arrival;
    return x != y ? x < y : a->arrival < b->arrival;
  });
  const int all_room = chunk_ - n_decoding;
  int budget = prompt_budget(n_decoding), room = all_room;
  std::map<uint64_t, int64_t> still;
  for (const SeqDemand* d : prompts) still[d->arrival] = passed(d->arrival);
  for (const SeqDemand* d : prompts) {
    const int n = grant(d->pending, budget, room, all_room);
    if (budget <= 0) break;
    if (n == 0) continue;
    grants.push_back({d->id, n});
    budget -= n, room -= n;
    for (auto& [arrival, tokens] : still)
      if (arrival < d->arrival) tokens += n;
  }
  passed_ = std::move(still);
  // Row-invariant kernels take the leading short sequences (StepShape::n_small).
  auto small_end = grants.begin();
  for (auto g = grants.begin(); g != grants.end(); ++g)
    if (g->n <= kSmallT) std::rotate(small_end++, g, g + 1);
  if (block_ > 0) std::stable_partition(small_end, grants.end(), [&](const SeqGrant& g) { return g.n < block_; });
  return grants;
}

}  // namespace facet
