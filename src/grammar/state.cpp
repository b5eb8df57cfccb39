#include "grammar/state.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>

namespace facet {
namespace grammar {
namespace {

class Saver {
 public:
  Saver(const Stacks& stacks, std::vector<uint32_t>& words, GrammarWork& work)
      : stacks_(stacks), words_(words), work_(work) {}

  // Numbers a set and what lies below it; its words go to `sets`. Once the work is over numbers mean nothing.
  uint32_t number(Stacks::Set s) {
    if (s == Stacks::kEmptyStack || work_.over()) return 0;
    if (const auto it = numbers_.find(s); it != numbers_.end()) return it->second;
    const auto entries = stacks_.entries(s);
    if (!work_.spend(16 + 4 * entries.size())) return 0;
    std::vector<uint32_t> below;
    for (const Stacks::Entry& e : entries) below.push_back(number(e.below));
    if (work_.over()) return 0;
    sets_.push_back(uint32_t(entries.size()) * 2 + stacks_.has_empty(s));
    for (size_t i = 0; i < entries.size(); ++i) sets_.insert(sets_.end(), {entries[i].node, below[i]});
    const uint32_t made = uint32_t(numbers_.size()) + 1;
    numbers_.emplace(s, made);
    return made;
  }
  void finish() {
    words_.push_back(uint32_t(numbers_.size()));
    words_.insert(words_.end(), sets_.begin(), sets_.end());
  }

 private:
  const Stacks& stacks_;
  std::vector<uint32_t>& words_;
  std::vector<uint32_t> sets_;
  std::unordered_map<Stacks::Set, uint32_t> numbers_;
  GrammarWork& work_;
};

}  // namespace

bool save_frame(const Frame& frame, Stepper& stepper, std::vector<uint32_t>& to) {
  GrammarWork& work = stepper.work();
  const Stacks& stacks = stepper.stacks();
  if (!work.spend(frame.items.size())) return false;
  std::vector<Item> items = frame.items;
  std::sort(items.begin(), items.end(), [](const Item& a, const Item& b) { return a.node < b.node; });
  std::vector<uint32_t> words{uint32_t(frame.may_end), uint32_t(items.size())};
  Saver saver(stacks, words, work);
  for (const Item& item : items) words.insert(words.end(), {item.node, saver.number(item.stacks)});
  saver.finish();
  if (words.size() > kMaxStateWords) work.end();
  if (work.over()) return false;
  to = std::move(words);
  return true;
}

void load_frame(const std::vector<uint32_t>& words, Stepper& stepper, Frame& frame) {
  Stacks& stacks = stepper.stacks();
  frame = {};
  if (!stepper.work().spend(words.size() / 8)) return;
  frame.may_end = words[0] != 0;
  const size_t n_items = words[1];
  size_t at = 2 + 2 * n_items;
  std::vector<Stacks::Set> sets{Stacks::kEmptyStack};
  std::vector<Stacks::Entry> entries;
  for (uint32_t left = words[at++]; left > 0 && !stacks.overflow(); --left) {
    const uint32_t head = words[at++];
    entries.clear();
    for (uint32_t i = 0; i < head / 2; ++i, at += 2) entries.push_back({words[at], sets[words[at + 1]]});
    sets.push_back(stacks.make(head & 1, entries));
  }
  if (stacks.overflow()) return void(frame = {});
  for (size_t i = 0; i < n_items; ++i) frame.items.push_back({words[2 + 2 * i], sets[words[3 + 2 * i]]});
}

Stepper& thread_stepper(const Automaton& a) {
  thread_local Stepper stepper;
  if (GrammarWork* const work = GrammarWorkScope::current())
    stepper.reset(a, *work);
  else
    stepper.reset(a);
  return stepper;
}

}  // namespace grammar

using grammar::Automaton;
using grammar::Frame;
using grammar::Stepper;

bool grammar::start_state(const Automaton& a, std::vector<uint32_t>& words) {
  Stepper& stepper = thread_stepper(a);
  Frame frame;
  stepper.start(frame);
  return save_frame(frame, stepper, words);
}

Error too_ambiguous() {
  return {"grammar",
          fmt::format("it is too ambiguous: where a text can be read in so many ways, one token takes more than "
                      "{} units of work",
                      GrammarWork::kMost),
          "write it so that a text can be read in fewer ways, with smaller counts and fewer alternatives that begin "
          "alike"};
}

GrammarState::GrammarState(GrammarPtr grammar)
    : grammar_(std::move(grammar)), asleep_(grammar_->lazy()), words_(grammar_->start()) {}

namespace {
// One token or text; false if it may not come.
bool follow(Stepper& stepper, Frame& frame, std::string_view text) {
  Frame next;
  for (const char c : text) {
    stepper.step(frame, uint8_t(c), next);
    std::swap(frame, next);
    if (!frame.alive()) return false;
  }
  return true;
}

bool follow(Stepper& stepper, Frame& frame, const GrammarVocab& vocab, int32_t token) {
  if (token < 0 || token >= vocab.size()) return false;
  if (vocab.is_eog(token)) return frame.may_end;
  if (const int special = vocab.special_of(token); special >= 0) {
    Frame next;
    stepper.step(frame, grammar::SpecialToken(special), next);
    std::swap(frame, next);
    return frame.alive();
  }
  const std::string_view text = vocab.text(token);
  return !text.empty() && follow(stepper, frame, text);
}
}  // namespace

bool GrammarState::advance(const GrammarVocab& vocab, int32_t token) {
  if (asleep_ && token != vocab.special(grammar::SpecialToken::kToolCallOpen)) return true;
  Stepper& stepper = grammar::thread_stepper(grammar_->automaton());
  Frame frame;
  load_frame(words_, stepper, frame);
  if (!follow(stepper, frame, vocab, token) || (!vocab.is_eog(token) && !save_frame(frame, stepper, words_)))
    return false;
  asleep_ = false;
  return true;
}

bool GrammarState::advance_bytes(std::string_view text) {
  if (asleep_) return true;
  Stepper& stepper = grammar::thread_stepper(grammar_->automaton());
  Frame frame;
  load_frame(words_, stepper, frame);
  if (!follow(stepper, frame, text)) return false;
  return save_frame(frame, stepper, words_);
}

bool GrammarState::advance_special(grammar::SpecialToken token) {
  if (asleep_ && token != grammar::SpecialToken::kToolCallOpen) return true;
  Stepper& stepper = grammar::thread_stepper(grammar_->automaton());
  Frame frame, next;
  load_frame(words_, stepper, frame);
  stepper.step(frame, token, next);
  if (!next.alive() || !save_frame(next, stepper, words_)) return false;
  asleep_ = false;
  return true;
}

size_t GrammarState::accepts(const GrammarVocab& vocab, std::span<const int32_t> tokens) const {
  if (asleep_) {
    const int32_t wakes = vocab.special(grammar::SpecialToken::kToolCallOpen);
    const auto at = std::find(tokens.begin(), tokens.end(), wakes);
    const size_t before = size_t(at - tokens.begin());
    if (at == tokens.end()) return before;
    GrammarState awake = *this;
    awake.asleep_ = false;
    return before + awake.accepts(vocab, tokens.subspan(before));
  }
  Stepper& stepper = grammar::thread_stepper(grammar_->automaton());
  Frame frame;
  load_frame(words_, stepper, frame);
  size_t n = 0;
  while (n < tokens.size() && follow(stepper, frame, vocab, tokens[n])) {
    if (vocab.is_eog(tokens[n++])) break;
  }
  return n;
}

std::string GrammarState::forced_text(size_t max_bytes) const {
  if (asleep_) return "";
  const grammar::Automaton& a = grammar_->automaton();
  Stepper& stepper = grammar::thread_stepper(a);
  Frame frame, next;
  load_frame(words_, stepper, frame);
  std::string out;
  while (out.size() < max_bytes && !frame.may_end) {
    int only = -1;
    for (const grammar::Item& item : frame.items) {
      if (!stepper.work().spend(1)) return out;
      if (!a.tokens_of(item.node).empty()) return out;
      for (const auto& r : a.ranges_of(item.node)) {
        if (r.lo != r.hi || (only >= 0 && only != r.lo)) return out;
        only = r.lo;
      }
    }
    if (only < 0) break;
    stepper.step(frame, uint8_t(only), next);
    std::swap(frame, next);
    if (!frame.alive()) break;
    out += char(only);
  }
  return out;
}

}  // namespace facet
