#pragma once
#include <cstdint>
#include <span>
#include <vector>

namespace facet {

// How long a target step takes by the number of its rows, T(n): measured at start for a few n, followed as
// steps go by.
class StepTimes {
 public:
  explicit StepTimes(int max_rows = 1) : known_(size_t(max_rows) + 1) {}
  void observe(int rows, double seconds);
  double at(int rows) const;  // between known ones on the line through them; 0: nothing is known
 private:
  void fill() const;
  std::vector<double> known_;           // seconds over drift_; 0: not known
  double drift_ = 1;                    // what has changed for all of them alike: context, clocks, other programs
  mutable std::vector<double> filled_;  // over drift_, with those between; empty: known_ has changed
};

// How long a drafter takes for n tokens: a line through what was measured, newest first.
class DraftTimes {
 public:
  void observe(int n, double seconds);
  double at(int n) const;

 private:
  int seen_ = 0, newest_ = 0;
  double w_ = 0, n_ = 0, nn_ = 0, t_ = 0, nt_ = 0;
};

// How likely it is that the first k drafts are right, learned from verifications.
class Survival {
 public:
  explicit Survival(int max_draft = 0) : hit_(size_t(max_draft) + 1), trial_(size_t(max_draft) + 1) {}
  void observe(int offered, int accepted);
  void soften();  // what follows may be of another kind
  // Tokens expected from rounds of 1 .. n drafts: 1 + the sum of the survivals. tokens[k - 1] is for k
  // drafts. hope: standard errors by which chances are taken for better.
  void expect(int n, std::vector<double>& tokens, double hope = 0) const;

 private:
  std::vector<double> hit_, trial_;
};

// How often guesses of a kind were right lately; what is not tried for long is thought of as at first.
class HitRate {
 public:
  void observe(bool right) { hit_ = hit_ * kForget + (right ? 1 : 0), trial_ = trial_ * kForget + 1; }
  void pass() { hit_ *= kFade, trial_ *= kFade; }  // a round without one
  double value() const { return (hit_ + kFirst * kFirstTrials) / (trial_ + kFirstTrials); }

 private:
  static constexpr double kForget = .95, kFade = .999, kFirst = .9, kFirstTrials = 2;
  double hit_ = 0, trial_ = 0;
};

// Of a chain whose tokens have these log-probabilities under its drafter, how many are worth a row of the
// verification: plain decoding would turn the time of the others into more tokens.
int worth_verifying(std::span<const float> log_prob, const StepTimes& step, int n_seq);

struct DraftLimits {
  int min = 0;  // drafts of a round; 0: a round may go without
  int max = 0;
  int tree = 0;      // nodes of a tree, instead of a chain; 0: chain
  int foretold = 0;  // nodes of what is foretold; 0: max
};
constexpr int64_t kAlone = -1;
// What a round does: tokens drafted by a method; method -1: none, n 0.
struct DraftChoice {
  int method = -1, n = 0;
  bool operator==(const DraftChoice&) const = default;
};

// Chooses method and length of every round of a sequence so that tokens come fastest, by its own acceptance
// and the measured times. A request starts with what the one before it in the same slot has taught. Every
// method is tried that could win; one that loses to plain decoding is left, and tried again at growing
// intervals, for half a percent of the time at most, with a single draft first. No clock and no random numbers in here.
class DraftChooser {
 public:
  DraftChooser() = default;
  // max_draft: of each method. foretold: the method, if there is one, that says beforehand how sure it is.
  DraftChooser(std::vector<int> max_draft, DraftLimits limits, int foretold = -1);

  // n_room: drafts for which there is room. n_seq: sequences that draft in this step. offer: of each draft of the
  // foretold method in this round, the chance that it becomes a token, falling; empty: there are none. round: of the
  // engine, so that sequences that decode together try things in the same step; kAlone: there is one.
  DraftChoice choose(const StepTimes& step, std::span<const DraftTimes> draft, int n_room, int n_seq,
                     std::span<const float> offer = {}, int64_t round = kAlone);
  // cut: the drafter had more to offer, which was not worth verifying.
  void observe(DraftChoice made, int offered, int accepted, bool cut = false);
  // Tokens a second that are expected of a choice with a method.
  double rate(DraftChoice c, const StepTimes& step, std::span<const DraftTimes> draft, int n_seq) const;
  // What was learned of the first n drafts of a method that is not foretold: the chance that each becomes a token.
  void chances(int method, int n, std::vector<float>& out) const;
  void next_request();                           // what was learned counts less
  bool knows_nothing() const;                    // it was never asked for a draft
  DraftChoice decided() const { return last_; }  // without single rounds that only try something

 private:
  struct Method {
    int max = 0;
    Survival survival;
    int rounds = 0;
    int idle = 0;        // rounds since it was last used
    int gap = 0;         // rounds after which it is tried again
    bool again = false;  // at once
    int row = 0;         // trials that came at once after another
  };
  int rows(DraftChoice c) const;  // of one sequence in its verification
  double time(DraftChoice c, const StepTimes& step, std::span<const DraftTimes> draft,
              int n_seq) const;  // of a round
  // Tokens of this method would come faster than at `rate` if all its drafts were right.
  bool could_pay(size_t m, const StepTimes& step, std::span<const DraftTimes> draft, int n_room, int n_seq,
                 double rate) const;
  DraftChoice best(const StepTimes& step, std::span<const DraftTimes> draft, int n_room, int n_seq, double& rate) const;

  std::vector<Method> method_;
  // Tokens expected of a round of 1 .. n drafts of a method, to tokens_. Returns how many drafts it can have, n at most.
  int expect(size_t m, int n) const;

  int foretold_ = -1;
  std::vector<double> offered_;         // 1 + the sum of the chances, of what is foretold
  mutable std::vector<double> tokens_;  // scratch of best()
  DraftLimits limits_;
  DraftChoice last_;
  int since_plain_ = 0;
};

}  // namespace facet
