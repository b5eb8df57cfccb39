#pragma once
#include <atomic>
#include <cstdint>

namespace facet {

// What following a grammar may take, counted in units: nodes of the trie of tokens, items of a state, edges and entries
// of stacks that are looked at or made. A unit takes a few nanoseconds; a grammar that is too much is too much on every
// machine. Once it is over nothing comes of the work any more: states and masks are as good as not computed.
class GrammarWork {
 public:
  // Of one mask or one token. What needs more is too ambiguous.
  static constexpr uint64_t kMost = 32'000'000;

  // cancelled: ends it when it becomes true.
  explicit GrammarWork(uint64_t units = kMost, const std::atomic<bool>* cancelled = nullptr)
      : units_(units), look_(units < kLook ? units : kLook), cancelled_(cancelled) {}

  // False: it is over.
  bool spend(uint64_t n) {
    spent_ += n;
    return spent_ <= look_ || go_on();
  }
  bool over() const { return over_; }
  uint64_t spent() const { return spent_; }
  // It is over for another reason: what is stored for the grammar is too much.
  void end() { over_ = true, look_ = 0, ++spent_; }

 private:
  static constexpr uint64_t kLook = 50'000;  // units between two looks at `cancelled`
  bool go_on() {
    over_ = over_ || spent_ > units_ || (cancelled_ && cancelled_->load(std::memory_order_relaxed));
    look_ = over_ ? 0 : spent_ + kLook < units_ ? spent_ + kLook : units_;
    return !over_;
  }
  uint64_t units_, look_, spent_ = 0;
  const std::atomic<bool>* cancelled_;
  bool over_ = false;
};

// While it lives, what this thread does with grammars counts there. Without one every call has kMost of its own.
class GrammarWorkScope {
 public:
  explicit GrammarWorkScope(GrammarWork& work) : before_(current()) { current() = &work; }
  ~GrammarWorkScope() { current() = before_; }
  GrammarWorkScope(const GrammarWorkScope&) = delete;
  GrammarWorkScope& operator=(const GrammarWorkScope&) = delete;
  static GrammarWork*& current() {
    thread_local GrammarWork* work = nullptr;
    return work;
  }

 private:
  GrammarWork* before_;
};

}  // namespace facet
