#pragma once
#include <algorithm>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <system_error>
#include <vector>

#include "engine/constrain.h"
#include "session/active_request.h"
#include "session/mask_tasks.h"

namespace facet {

// Grammars in the steps of an engine. What a step does for them itself is bounded in units of work, for one request and
// for all: what would take more is made on a thread of its own, while the request sits out steps and nobody else waits.
class GrammarSteps {
 public:
  // A few milliseconds for a request, some fifteen for all of them.
  static constexpr uint64_t kOfRequest = 400'000, kOfStep = 1'200'000;

  // of_request: another kOfRequest; 0: that.
  explicit GrammarSteps(uint64_t of_request) : of_request_(of_request ? of_request : kOfRequest) {}

  // null: no request has a grammar any more.
  void use(GrammarMasks* masks) {
    thread_.reset();
    masks_ = masks;
  }
  GrammarMasks* masks() const { return masks_; }
  const GrammarVocab& vocab() const { return masks_->vocab(); }

  void begin_step() {
    left_ = kOfStep;
    rows_.clear();
  }

  enum class Turn {
    kGo,
    kWait,     // sits the step out
    kEnds,     // nothing but the end may come
    kFails,    // the error says why
    kRefused,  // likewise; it is the grammar's fault
    kBroken,   // likewise; others will fail, too
  };
  // Whether a running request takes part in the step.
  Turn turn(ActiveRequest& w, std::string& error) {
    if (!w.grammar) return Turn::kGo;
    if (!w.masking) {
      if (w.untold.empty() && (w.slow == 0 || !w.answered || masks_->known(*w.grammar))) return Turn::kGo;
      look_ahead(w);
    }
    if (!w.masking->done.load(std::memory_order_acquire)) return Turn::kWait;
    MaskTask& task = *w.masking;
    if (task.taken) return Turn::kGo;
    switch (task.end) {
      case MaskTask::End::kRefused:
        error = kForbidden;
        return Turn::kBroken;
      case MaskTask::End::kOver:
        error = too_ambiguous().message();
        return Turn::kRefused;
      case MaskTask::End::kMemory:
        error = kNoMemory;
        return Turn::kFails;
      case MaskTask::End::kReady:
        break;
    }
    task.taken = true;
    w.grammar = task.state;
    w.untold.clear();
    w.slow = task.spent > of_request_ / 4 ? kSlowFor : std::max(0, w.slow - 1);
    return w.grammar->finished() ? Turn::kEnds : Turn::kGo;
  }
  // Until a mask is there, or a few milliseconds have passed; for an engine in which all requests wait for one.
  void wait() {
    if (thread_) thread_->wait();
  }

  // Work for a request's drafts; a request whose masks take long has none.
  GrammarWork for_drafts(size_t n_requests) const {
    return GrammarWork(std::clamp<uint64_t>(kOfStep / 2 / std::max<size_t>(1, n_requests),
                                            std::min<uint64_t>(4000, of_request_), of_request_));
  }
  void drafted(ActiveRequest& w, const GrammarWork& work) {
    spend(work);
    if (work.spent() >= of_request_) w.slow = kSlowFor;
  }

  // States along a draft and masks of its rows: nullopt, and false: the request has to sit out.
  bool follow(ActiveRequest& w, const DraftTree* tree, GrammarPath& path) {
    path.states.assign(1, *w.grammar);
    if (!tree || tree->size() == 1) return true;
    bool forbidden = false;
    const bool ok = counted(w, [&] { forbidden = !path.extend(vocab(), *tree); });
    CHECK(!ok || !forbidden, "a draft that is forbidden");
    return ok;
  }
  std::optional<std::span<const uint32_t>> mask(ActiveRequest& w, const GrammarState& state, int node, int n_vocab) {
    const std::span<uint32_t> row = rows_.add(n_vocab);
    const size_t words = vocab().mask_words();
    CHECK(words <= row.size(), "a vocabulary of {} tokens, {} logits", vocab().size(), n_vocab);
    if (node == 0 && w.masking && w.masking->taken) {
      std::copy(w.masking->bits.begin(), w.masking->bits.end(), row.begin());
      return row;
    }
    bool made = false;
    if (!counted(w, [&] { made = masks_->mask(state, row.first(words)); }) || !made) return std::nullopt;
    return row;
  }
  std::span<const uint32_t> only(int32_t id, int n_vocab) { return rows_.only(id, n_vocab); }

  // The rows of a request were computed for nothing: it sits out until its mask is there.
  void sit_out(ActiveRequest& w) {
    w.slow = kSlowFor;
    if (!w.masking) look_ahead(w);
  }

  // A token was drawn. False: the grammar forbids it.
  bool advance(ActiveRequest& w, int32_t id) {
    w.masking.reset();
    if (!w.untold.empty()) return w.untold.push_back(id), true;
    bool taken = false;
    if (counted(w, [&] { taken = w.grammar->advance(vocab(), id); })) return taken;
    w.untold.push_back(id);
    return true;
  }
  bool finished(const ActiveRequest& w) const { return w.untold.empty() && w.grammar->finished(); }
  // Behind the last token of a step: who is slow waits from now on and not from the next step on.
  void stepped(ActiveRequest& w) {
    if (!w.masking && (!w.untold.empty() || (w.slow > 0 && !masks_->known(*w.grammar)))) look_ahead(w);
  }

  bool no_way_on(ActiveRequest& w, int n_vocab) {
    const auto row = mask(w, *w.grammar, 0, n_vocab);
    return !row || std::all_of(row->begin(), row->end(), [](uint32_t word) { return word == 0; });
  }

  static constexpr const char* kForbidden =
      "a token was drawn that the grammar forbids; a kernel is broken (run with --backend ref to tell which)";
  static constexpr const char* kNoMemory = "grammar: memory ran out while it was followed (try again)";

 private:
  static constexpr int kSlowFor = 8;  // masks; then a request is tried without the thread

  void spend(const GrammarWork& work) { left_ -= std::min(left_, work.spent()); }
  // False: it took too long.
  template <class F>
  bool counted(ActiveRequest& w, F&& f) {
    GrammarWork work(std::min(of_request_, left_));
    {
      const GrammarWorkScope scope(work);
      f();
    }
    spend(work);
    if (work.over()) w.slow = kSlowFor;
    return !work.over();
  }
  void look_ahead(ActiveRequest& w) {
    try {
      if (!thread_) thread_ = std::make_unique<MaskThread>(*masks_);
    } catch (const std::system_error&) {  // no room for its stack
      throw std::bad_alloc();
    }
    w.masking = thread_->start(*w.grammar, w.untold);
  }

  GrammarMasks* masks_ = nullptr;
  std::unique_ptr<MaskThread> thread_;  // once it is needed
  StepMasks rows_;
  const uint64_t of_request_;
  uint64_t left_ = kOfStep;
};

}  // namespace facet
