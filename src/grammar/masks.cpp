#include "grammar/masks.h"

#include <algorithm>
#include <array>
#include <bit>
#include <optional>

#include "base/check.h"
#include "grammar/plain_run.h"
#include "grammar/state.h"
#include "grammar/walk.h"

namespace facet {

using grammar::Automaton;
using grammar::Frame;
using grammar::Item;
using grammar::PlainRun;
using grammar::Stepper;
using grammar::Walk;

// Of a node: what its rule decides alone.
struct GrammarMasks::NodeMask {
  std::vector<uint32_t> bits;              // a mask, or empty:
  std::vector<int32_t> tokens;             // few tokens
  std::vector<uint32_t> after;             // children of trie nodes where the rule has ended, by their byte
  std::array<uint32_t, 257> after_byte{};  // first in after
  // And parts of the trie, of code points of whole_kinds, in each of whose nodes the rule may have ended: begin, end.
  std::vector<std::pair<uint32_t, uint32_t>> whole;
  uint16_t whole_kinds = 0;
  // And everywhere in the trie: behind j code points of run_kinds the rule may have ended if bit j is set.
  uint64_t run_ends = 0;
  uint16_t run_kinds = 0;
  template <class F>
  void for_run(const GrammarVocab::Trie& trie, uint8_t byte, const F& f) const {
    for (uint32_t k = trie.byte_begin[byte]; k < trie.byte_begin[size_t(byte) + 1]; ++k) {
      const uint32_t n = trie.by_byte[k];
      if (!(trie.path[n] & ~run_kinds) && (run_ends >> trie.before[n] & 1)) f(n);
    }
  }
  uint32_t depth = 0;  // stack entries that tokens need beyond those below the node
  // Whether a code point in those parts may begin with the byte. (A byte inside of one is in no code point's place.)
  bool has_whole(uint8_t byte) const {
    return (byte & 0xC0) != 0x80 && (whole_kinds >> GrammarVocab::kind_of(byte) & 1);
  }
  template <class F>
  void for_whole(const GrammarVocab::Trie& trie, uint8_t byte, const F& f) const {
    auto at = trie.by_byte.begin() + trie.byte_begin[byte];
    const auto end = trie.by_byte.begin() + trie.byte_begin[size_t(byte) + 1];
    for (const auto& [from, to] : whole)
      for (at = std::lower_bound(at, end, from); at != end && *at < to; ++at) f(*at);
  }
  size_t bytes() const {
    return sizeof(*this) + bits.size() * 4 + tokens.size() * 4 + after.size() * 4 + whole.size() * 8;
  }
};

struct GrammarMasks::StateMask {
  std::vector<uint32_t> key, bits;
  int32_t forced = -1;
  size_t bytes() const { return sizeof(*this) + 160 + key.size() * 8 + bits.size() * 4; }
};

namespace {

void set_bit(std::span<uint32_t> mask, int32_t token) { mask[size_t(token) / 32] |= 1u << (token % 32); }

// The children of trie nodes, sorted by byte.
void sort_children(const GrammarVocab::Trie& trie, const std::vector<uint32_t>& nodes, std::vector<uint32_t>& sorted,
                   std::array<uint32_t, 257>& first) {
  const auto each = [&](auto&& visit) {
    for (const uint32_t node : nodes)
      for (uint32_t child = node + 1; child < trie.next[node]; child = trie.next[child]) visit(child);
  };
  each([&](uint32_t child) { ++first[size_t(trie.byte[child]) + 1]; });
  for (size_t b = 0; b < 256; ++b) first[b + 1] += first[b];
  std::array<uint32_t, 257> at = first;
  sorted.resize(first[256]);
  each([&](uint32_t child) { sorted[at[trie.byte[child]]++] = child; });
}

}  // namespace

size_t GrammarMasks::Hash::operator()(const std::vector<uint32_t>& key) const {
  uint64_t h = key.size();
  for (const uint32_t v : key) h = (h ^ v) * 0x9E3779B97F4A7C15u, h ^= h >> 29;
  return size_t(h);
}

GrammarMasks::GrammarMasks(std::shared_ptr<const GrammarVocab> vocab, size_t max_bytes)
    : vocab_(std::move(vocab)), max_bytes_(max_bytes) {}
GrammarMasks::~GrammarMasks() = default;

GrammarMasks::NodeMaskPtr GrammarMasks::node_mask(const Automaton& a, uint32_t node) {
  {
    const std::lock_guard lock(mutex_);
    const auto it = nodes_.find(a.classes[node]);
    if (it != nodes_.end()) return it->second;
    ++stats_.node_misses;
  }
  // On a stack that escapes when it is returned to.
  Stepper& stepper = grammar::thread_stepper(a);
  // The root is called by no rule: there the stack is empty.
  const bool in_root = a.in_root[node];
  const Item start{node, in_root ? grammar::Stacks::kEmptyStack
                                 : stepper.stacks().push(Automaton::kEscape, grammar::Stacks::kEmptyStack)};
  auto made = std::make_shared<NodeMask>();
  const auto& tokens = vocab_->trie().tokens;
  constexpr size_t kFew = 2048;
  std::vector<uint32_t> ends;
  Walk walk(*vocab_, a, stepper, start.stacks);
  const auto allow = [&](uint32_t begin, uint32_t end) {
    if (made->bits.empty() && made->tokens.size() + (end - begin) > kFew) {
      made->bits.assign(vocab_->mask_words(), 0);
      for (const int32_t t : made->tokens) set_bit(made->bits, t);
      made->tokens.clear();
    }
    for (uint32_t i = begin; i < end; ++i) {
      if (made->bits.empty())
        made->tokens.push_back(tokens[i]);
      else
        set_bit(made->bits, tokens[i]);
    }
  };
  const auto ended = [&](uint32_t trie_node) { ends.push_back(trie_node); };
  const auto all_ended = [&](uint32_t trie_node, uint16_t kinds) {
    made->whole.emplace_back(trie_node + 1, vocab_->trie().next[trie_node]);
    made->whole_kinds |= kinds;
  };
  PlainRun run;
  GrammarWork& work = stepper.work();
  work.spend(256);
  if (plain_run(a, node, vocab_->trie(), run) && walk.fits(run.need, start.stacks)) {
    work.spend(size_t(vocab_->size()) / 16);
    made->bits.assign(vocab_->mask_words(), 0);
    vocab_->allow_kinds(run.kinds, run.length, made->bits);
    if (!in_root) made->run_ends = run.ends, made->run_kinds = run.kinds;
    run.for_others(vocab_->trie(), [&](uint32_t trie_node, uint32_t from) {
      walk.enter(trie_node, {from, start.stacks}, allow, ended, all_ended);
    });
  } else {
    walk.run(0, {&start, 1}, allow, ended, all_ended);
  }
  if (work.over() || !work.spend(ends.size())) return nullptr;
  sort_children(vocab_->trie(), ends, made->after, made->after_byte);
  // Here the stack below is one entry deep: what was given up on it may do on another.
  if (stepper.was_cut())
    made->depth = a.max_depth + 1;
  else
    made->depth = in_root ? walk.depth() : std::max(walk.depth(), 1u) - 1;  // less the escape
  const std::lock_guard lock(mutex_);
  const auto [it, fresh] = nodes_.try_emplace(a.classes[node], made);
  if (fresh) node_bytes_ += made->bytes();
  return it->second;
}

// Special tokens that may follow.
static void add_specials(const GrammarVocab& vocab, const Automaton& a, Stepper& stepper, const Frame& frame,
                         std::span<uint32_t> mask) {
  Frame next;
  std::array<bool, grammar::kSpecialTokens> specials{};
  for (const Item& item : frame.items)
    for (const auto& e : a.tokens_of(item.node)) specials[size_t(e.token)] = true;
  for (size_t t = 0; t < specials.size(); ++t) {
    const int32_t id = vocab.special(grammar::SpecialToken(t));
    if (!specials[t] || id < 0) continue;
    stepper.step(frame, grammar::SpecialToken(t), next);
    if (next.alive()) set_bit(mask, id);
  }
}
// Tokens that a node decides alone.
static void add_decided(const auto& part, std::span<uint32_t> mask) {
  if (!part.bits.empty())
    for (size_t w = 0; w < mask.size(); ++w) mask[w] |= part.bits[w];
  for (const int32_t t : part.tokens) set_bit(mask, t);
}

bool GrammarMasks::compute(const GrammarState& state, std::span<uint32_t> mask) {
  const Automaton& a = state.grammar()->automaton();
  std::fill(mask.begin(), mask.end(), 0);
  if (state.may_end())
    for (const int32_t id : vocab_->eog()) set_bit(mask, id);
  const size_t n_items = state.words()[1];
  // Many nodes at once have little that they decide alone, and share what they lead to.
  const bool together = n_items > kMostParts;
  std::vector<NodeMaskPtr> parts;  // before the stepper is used: they use it too
  for (size_t i = 0; i < n_items && !together; ++i) {
    parts.push_back(node_mask(a, state.words()[2 + 2 * i]));
    if (!parts.back()) return false;
  }

  Stepper& stepper = grammar::thread_stepper(a);
  GrammarWork& work = stepper.work();
  Frame frame, below, next;
  load_frame(state.words(), stepper, frame);
  const auto& trie = vocab_->trie();
  const auto allow = [&](uint32_t begin, uint32_t end) {
    for (uint32_t k = begin; k < end; ++k) set_bit(mask, trie.tokens[k]);
  };
  const auto ignore = [](uint32_t) {};
  const auto ignore_all = [](uint32_t, uint16_t) {};
  Walk walk(*vocab_, a, stepper, grammar::Stacks::kEmptyStack);
  add_specials(*vocab_, a, stepper, frame, mask);
  if (together && !work.over()) walk.run(0, frame.items, allow, ignore, ignore_all);
  const auto too_deep = [&](size_t i) {  // for some tokens
    return stepper.stacks().depth(frame.items[i].stacks) + parts[i]->depth > a.max_depth;
  };
  // First what nodes decide alone: what others lead to is often among it, and not looked at then. (In a text whose
  // length is counted a block's end leads nowhere where the text's tail does not.)
  for (size_t i = 0; i < n_items && !together && !work.over(); ++i) {
    if (too_deep(i)) continue;
    const NodeMask& part = *parts[i];
    work.spend(mask.size() / 16);
    add_decided(part, mask);
  }
  const auto all_allowed = [&](uint32_t begin, uint32_t end) {
    uint32_t k = begin;
    while (k < end && (mask[size_t(trie.tokens[k]) / 32] >> (trie.tokens[k] % 32) & 1)) ++k;
    work.spend((k - begin) / 8);
    return k == end;
  };
  for (size_t i = 0; i < n_items && !together && !work.over(); ++i) {
    const Item item = frame.items[i];
    const NodeMask& part = *parts[i];
    if (too_deep(i)) {
      walk.run(0, {&item, 1}, allow, ignore, ignore_all);
      continue;
    }
    if (part.after.empty() && part.whole.empty() && !part.run_ends) continue;
    stepper.pop(item, below);
    if (below.items.empty()) continue;
    for (size_t b = 0; b < 256; ++b) {
      const bool in_whole = part.has_whole(uint8_t(b));
      if (part.after_byte[b] == part.after_byte[b + 1] && !in_whole && !part.run_ends) continue;
      stepper.step(below, uint8_t(b), next);
      if (!next.alive()) continue;
      const auto go_on = [&](uint32_t child) {
        if (!work.spend(1) || all_allowed(trie.tokens_[child], trie.tokens_[trie.next[child]])) return;
        allow(trie.tokens_[child], trie.tokens_[child + 1]);
        if (!next.items.empty() && trie.next[child] > child + 1) walk.run(child, next.items, allow, ignore, ignore_all);
      };
      for (uint32_t k = part.after_byte[b]; k < part.after_byte[b + 1]; ++k) go_on(part.after[k]);
      work.spend(in_whole ? part.whole.size() : 0);
      if (in_whole) part.for_whole(trie, uint8_t(b), go_on);
      work.spend(part.run_ends ? (trie.byte_begin[b + 1] - trie.byte_begin[b]) / 8 : 0);
      if (part.run_ends) part.for_run(trie, uint8_t(b), go_on);
      if (work.over()) break;
    }
  }
  for (const int32_t id : vocab_->long_tokens()) {
    if (work.over()) break;
    if (GrammarState(state).advance(*vocab_, id)) set_bit(mask, id);
  }
  return !work.over();
}

void GrammarMasks::make_room() {
  if (node_bytes_ > max_bytes_ / 2) {
    nodes_.clear();
    node_bytes_ = 0;
  }
  while (!recent_.empty() && node_bytes_ + state_bytes_ > max_bytes_) {
    state_bytes_ -= recent_.back()->bytes();
    states_.erase(recent_.back()->key);
    recent_.pop_back();
  }
}

std::vector<uint32_t> GrammarMasks::key_of(const GrammarState& state) {
  const uint64_t id = state.grammar()->id();
  std::vector<uint32_t> key{uint32_t(id), uint32_t(id >> 32)};
  key.insert(key.end(), state.words().begin(), state.words().end());
  return key;
}

GrammarMasks::StateMaskPtr GrammarMasks::state_mask(const GrammarState& state) {
  auto made = std::make_shared<StateMask>();
  made->key = key_of(state);
  {
    const std::lock_guard lock(mutex_);
    if (const auto it = states_.find(made->key); it != states_.end()) {
      recent_.splice(recent_.begin(), recent_, it->second);
      ++stats_.state_hits;
      return recent_.front();
    }
    ++stats_.state_misses;
  }
  GrammarWork own;
  std::optional<GrammarWorkScope> scope;
  if (!GrammarWorkScope::current()) scope.emplace(own);
  made->bits.resize(vocab_->mask_words());
  if (!compute(state, made->bits)) return nullptr;
  size_t n = 0;
  for (const uint32_t w : made->bits) n += size_t(std::popcount(w));
  for (size_t w = 0; n == 1 && w < made->bits.size(); ++w)
    if (made->bits[w]) made->forced = int32_t(w * 32 + size_t(std::countr_zero(made->bits[w])));
  const std::lock_guard lock(mutex_);
  if (states_.contains(made->key)) return made;
  recent_.push_front(made);
  states_.emplace(made->key, recent_.begin());
  state_bytes_ += made->bytes();
  make_room();
  return made;
}

bool GrammarMasks::mask(const GrammarState& state, std::span<uint32_t> mask) {
  CHECK(mask.size() == vocab_->mask_words(), "a mask of {} words, the vocabulary has {}", mask.size(),
        vocab_->mask_words());
  if (state.asleep()) return std::fill(mask.begin(), mask.end(), ~uint32_t(0)), true;
  const StateMaskPtr made = state_mask(state);
  if (made)
    std::copy(made->bits.begin(), made->bits.end(), mask.begin());
  else
    std::fill(mask.begin(), mask.end(), 0);
  return made != nullptr;
}

Status GrammarMasks::prepare(const GrammarPtr& grammar) {
  if (!state_mask(GrammarState(grammar))) return too_ambiguous();
  return Ok{};
}

bool GrammarMasks::known(const GrammarState& state) const {
  if (state.asleep()) return true;
  const std::lock_guard lock(mutex_);
  return states_.contains(key_of(state));
}

int32_t GrammarMasks::forced_token(const GrammarState& state) {
  if (state.asleep()) return -1;
  const StateMaskPtr made = state_mask(state);
  return made ? made->forced : -1;
}

GrammarMasks::Stats GrammarMasks::stats() const {
  const std::lock_guard lock(mutex_);
  Stats s = stats_;
  s.bytes = node_bytes_ + state_bytes_;
  return s;
}

}  // namespace facet
