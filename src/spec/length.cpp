#include "spec/length.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace facet {
namespace {

constexpr double kFollow = .15;  // share of a new step time in what is known
constexpr double kDrift = .1;
// The most that one time counts over what is known: another program ran in between.
constexpr double kOutlier = 1.25;
// One that is so much less says that what is known was taken while one ran.
constexpr double kMuchLess = .75, kFollowDown = .8;
constexpr double kForget = .97;  // of a trial's weight, per trial after it: a memory of 33 rounds
// Standard errors by which a chance of which much is known is taken for better than it looks: what is given up by bad
// luck is not seen again for long, what is kept by good luck is.
constexpr double kHope = .7;
constexpr double kPrior = .7, kPriorTrials = 2, kPriorLasts = 20;
constexpr double kBorrowed = 1;  // trials that a position borrows from the one before it
// kProbe: of the first trial after a while. One row more costs little, and if it is right the next trial is a longer
// one.
constexpr int kTrials = 3, kTrialLength = 4, kProbe = 1;
constexpr int kFirstGap = 24, kLastGap = 512, kRequestGap = 64;  // the last one: at the start of a request
constexpr double kTrialShare = .005;                             // of all time, for trying again what was given up
// Rounds after which a plain step is timed again; where drafts clearly pay.
constexpr int kPlainGap = 16, kPlainGapClear = 128;
constexpr int kPlainSoon = 4;  // the same, where drafts have just begun to
constexpr double kClear = 1.3;
constexpr int kTogether = 16;      // rounds of the engine after which sequences that decode together may try something
constexpr double kWorthIt = 1.02;  // gain for which plain decoding or the last choice is left

}  // namespace

void StepTimes::observe(int rows, double seconds) {
  if (rows < 1 || seconds <= 0) return;
  filled_.clear();
  const size_t r = std::min(size_t(rows), known_.size() - 1);
  double& k = known_[r];
  if (k == 0) {
    k = seconds / drift_;
    return;
  }
  const double ratio = std::clamp(seconds / (k * drift_), 1 / kOutlier, kOutlier);
  drift_ *= 1 + kDrift * (ratio - 1);
  const double rest = std::min(seconds / (k * drift_), kOutlier);
  k *= 1 + (rest < kMuchLess ? kFollowDown : kFollow) * (rest - 1);
}

void StepTimes::fill() const {
  filled_ = known_;
  int before = 0, last = 0;  // known ones; 0: there is none
  const auto line = [&](int from, int to, int a, int b, double at_b) {
    for (int r = from; r < to; ++r)
      filled_[size_t(r)] = known_[size_t(a)] + (at_b - known_[size_t(a)]) * double(r - a) / double(b - a);
  };
  for (int r = 1; r < int(known_.size()); ++r) {
    if (known_[size_t(r)] == 0) continue;
    if (last == 0)
      std::fill(filled_.begin(), filled_.begin() + r, known_[size_t(r)]);
    else
      line(last + 1, r, last, r, known_[size_t(r)]);
    before = std::exchange(last, r);
  }
  // Beyond the last one: on the line through the last two.
  const int end = int(known_.size());
  if (before > 0)
    line(last + 1, end, before, last, std::max(known_[size_t(before)], known_[size_t(last)]));
  else if (last > 0)
    std::fill(filled_.begin() + last, filled_.end(), known_[size_t(last)]);
}

double StepTimes::at(int rows) const {
  if (filled_.empty()) fill();
  return filled_[size_t(std::clamp(rows, 1, int(known_.size()) - 1))] * drift_;
}

void DraftTimes::observe(int n, double seconds) {
  if (seen_ > 0) seconds = std::min(seconds, (n == newest_ ? kOutlier : 4) * at(n));
  newest_ = n;
  // The first one found cold caches, and on a GPU nothing recorded: the second one says more.
  if (++seen_ == 2 && n_ == n && seconds < t_) w_ = n_ = nn_ = t_ = nt_ = 0;
  for (double* x : {&w_, &n_, &nn_, &t_, &nt_}) *x *= kForget;
  w_ += 1, n_ += n, nn_ += double(n) * n, t_ += seconds, nt_ += n * seconds;
}

double DraftTimes::at(int n) const {
  if (w_ == 0) return 0;
  const double mean_n = n_ / w_, mean_t = t_ / w_;
  const double spread = nn_ / w_ - mean_n * mean_n;
  if (spread < .25) return mean_t;  // one length only: nothing is known about others
  const double slope = std::max(0., (nt_ / w_ - mean_n * mean_t) / spread);
  return std::max(0., mean_t + slope * (n - mean_n));
}

void Survival::observe(int offered, int accepted) {
  for (int k = 1; k <= std::min(offered, accepted + 1) && k < int(trial_.size()); ++k) {
    hit_[size_t(k)] = hit_[size_t(k)] * kForget + (k <= accepted ? 1 : 0);
    trial_[size_t(k)] = trial_[size_t(k)] * kForget + 1;
  }
}

void Survival::soften() {
  for (size_t k = 0; k < trial_.size(); ++k) hit_[k] *= .5, trial_[k] *= .5;
}

void Survival::expect(int n, std::vector<double>& tokens, double hope) const {
  tokens.clear();
  // p: of draft k when the ones before it are right. The first position starts from a guess that fades; the
  // others borrow from the one before.
  double p = kPrior, survival = 1, sum = 1;
  for (int k = 1; k <= n; ++k) {
    double known = 0;
    if (k < int(trial_.size())) {
      const double t = known = trial_[size_t(k)], fading = 1 - std::min(1., t / kPriorLasts);
      const double w = k == 1 ? kPriorTrials * fading : kBorrowed;
      if (t + w > 0) p = (hit_[size_t(k)] + w * p) / (t + w);
    }
    const double error = std::min(1., known / kPriorLasts) * std::sqrt(p * (1 - p) / (known + 1));
    survival *= std::min(1., p + hope * error);
    tokens.push_back(sum += survival);
  }
}

int worth_verifying(std::span<const float> log_prob, const StepTimes& step, int n_seq) {
  const double plain = step.at(n_seq);
  if (plain <= 0) return int(log_prob.size());
  int best = 0;
  double survival = 1, tokens = 0, best_gain = 0;
  for (int n = 1; n <= int(log_prob.size()); ++n) {
    survival *= std::exp(std::min(0., double(log_prob[size_t(n) - 1])));
    tokens += survival;
    const double gain = tokens - (step.at(n_seq * (n + 1)) - plain) / plain;
    if (gain > best_gain) best = n, best_gain = gain;
  }
  return best;
}

DraftChooser::DraftChooser(std::vector<int> max_draft, DraftLimits limits, int foretold)
    : foretold_(foretold), limits_(limits) {
  for (const int most : max_draft) {
    Method m;
    const bool is_foretold = int(method_.size()) == foretold && limits.foretold > 0;
    m.max = std::min(most, is_foretold ? limits.foretold : limits.max);
    m.survival = Survival(m.max);
    m.gap = kFirstGap;
    method_.push_back(std::move(m));
  }
}

int DraftChooser::rows(DraftChoice c) const {
  return c.n == 0 ? 1 : 1 + (c.method == foretold_ ? c.n : std::max(c.n, limits_.tree));
}

double DraftChooser::time(DraftChoice c, const StepTimes& step, std::span<const DraftTimes> draft, int n_seq) const {
  const double plain = step.at(n_seq);
  return c.method < 0 ? plain : std::max(plain, step.at(n_seq * rows(c))) + draft[size_t(c.method)].at(c.n);
}

int DraftChooser::expect(size_t m, int n) const {
  if (int(m) != foretold_) {
    method_[m].survival.expect(n, tokens_, kHope);
    return n;
  }
  n = std::min(n, int(offered_.size()));
  tokens_.assign(offered_.begin(), offered_.begin() + n);
  return n;
}

double DraftChooser::rate(DraftChoice c, const StepTimes& step, std::span<const DraftTimes> draft, int n_seq) const {
  expect(size_t(c.method), c.n);
  return tokens_.back() / std::max(1e-12, time(c, step, draft, n_seq));
}

void DraftChooser::chances(int method, int n, std::vector<float>& out) const {
  method_[size_t(method)].survival.expect(n, tokens_);
  out.clear();
  for (double before = 1; const double t : tokens_) out.push_back(float(t - std::exchange(before, t)));
}

bool DraftChooser::could_pay(size_t m, const StepTimes& step, std::span<const DraftTimes> draft, int n_room, int n_seq,
                             double rate) const {
  for (int n = 1; n <= std::min(method_[m].max, n_room); ++n)
    if (n + 1 > rate * time({int(m), n}, step, draft, n_seq)) return true;
  return false;
}

DraftChoice DraftChooser::best(const StepTimes& step, std::span<const DraftTimes> draft, int n_room, int n_seq,
                               double& rate) const {
  const double plain = step.at(n_seq);
  DraftChoice best;
  rate = limits_.min > 0 || plain <= 0 ? 0 : kWorthIt / plain;
  for (size_t m = 0; m < method_.size(); ++m) {
    const bool is_foretold = int(m) == foretold_;
    const int most = expect(m, is_foretold ? method_[m].max : std::min(method_[m].max, n_room));
    if (most < 1) continue;
    const bool whole = limits_.tree > 0 && !is_foretold;
    for (int n = whole ? most : std::max(1, std::min(limits_.min, most)); n <= most; ++n) {
      const double r = tokens_[size_t(n) - 1] / std::max(1e-12, time({int(m), n}, step, draft, n_seq));
      const bool again = DraftChoice{int(m), n} == last_;
      if (r * (again ? kWorthIt : 1) > rate) best = {int(m), n}, rate = r * (again ? kWorthIt : 1);
    }
  }
  return best;
}

DraftChoice DraftChooser::choose(const StepTimes& step, std::span<const DraftTimes> draft, int n_room, int n_seq,
                                 std::span<const float> offer, int64_t round) {
  if (n_room < 1 || method_.empty()) return {};
  offered_.clear();
  double sum = 1;
  for (const float p : offer) offered_.push_back(sum += double(p));
  auto limited = [&](size_t m, int n) { return std::min({n, method_[m].max, n_room}); };
  for (Method& m : method_) ++m.idle;
  double rate = 0;
  const DraftChoice now = best(step, draft, n_room, n_seq, rate);
  const double now_s = time(now, step, draft, n_seq);
  const bool may_try = round == kAlone || round % kTogether == 0;
  // Too little is known about a method, or known too long ago. What could not win if all of it were right is
  // hardly tried, and nothing so often that it costs much.
  for (size_t m = 0; m < method_.size(); ++m) {
    Method& q = method_[m];
    if (q.max < 1 || int(m) == foretold_ || (limits_.min > 0 && method_.size() == 1)) continue;
    const int length = q.rounds < kTrials ? kTrialLength : q.again ? kTrialLength << q.row : kProbe;
    const DraftChoice trial{int(m), limited(m, limits_.tree > 0 ? q.max : std::max(limits_.min, length))};
    const bool could = could_pay(m, step, draft, n_room, n_seq, rate);
    if (could && q.rounds < kTrials) return last_ = trial;
    q.again = q.again && could && q.row < kTrials;  // being right is not enough
    q.survival.expect(trial.n, tokens_);
    const double lost = rate > 0 ? time(trial, step, draft, n_seq) - tokens_.back() / rate : 0;
    const bool cheap = lost <= kTrialShare / double(method_.size()) * q.idle * now_s;
    const bool due = may_try && q.idle > (could ? q.gap : std::max(q.gap, kLastGap)) && cheap;
    if (q.again || due) {
      if (!q.again) q.gap = std::clamp(2 * q.gap, kFirstGap, kLastGap);
      q.row = q.again ? q.row + 1 : 0;
      q.again = false;
      return trial;  // not last_: a trial is no choice
    }
  }
  // What drafts are compared with must not be a time of long ago, nor one that was alone in letting them win.
  const int gap = rate * step.at(n_seq) > kClear ? kPlainGapClear : kPlainGap;
  since_plain_ = now.method < 0 ? 0 : last_.method < 0 && since_plain_ == 0 ? gap - kPlainSoon : since_plain_ + 1;
  last_ = now;
  const bool plain_is_due = round == kAlone ? since_plain_ >= gap : since_plain_ > 0 && round % gap == 0;
  if (limits_.min > 0 || !plain_is_due) return last_;
  since_plain_ = 0;
  return {};
}

void DraftChooser::observe(DraftChoice made, int offered, int accepted, bool cut) {
  if (made.method < 0 || made.method == foretold_) return;
  Method& m = method_[size_t(made.method)];
  ++m.rounds;
  m.idle = 0;
  if (accepted > 0 && made == last_) m.gap = kFirstGap;
  // A trial that went well is followed by another one at once, and if that was a long one by more.
  if (made != last_ && offered > 0 && accepted == offered) {
    m.again = true;
    if (offered > kProbe) m.gap = kFirstGap;
  }
  // What was cut is as good as wrong: it brought nothing.
  m.survival.observe(offered + (cut ? 1 : 0), accepted);
}

bool DraftChooser::knows_nothing() const {
  return std::ranges::all_of(method_, [](const Method& m) { return m.rounds == 0; });
}

void DraftChooser::next_request() {
  for (Method& m : method_) {
    m.survival.soften();
    m.gap = std::clamp(m.gap, kFirstGap, kRequestGap);
  }
}

}  // namespace facet
