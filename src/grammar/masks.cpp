#include "grammar/masks.h"

#include <algorithm>
#include <array>
#include <bit>
#include <deque>

#include "base/check.h"
#include "grammar/plain_run.h"
#include "grammar/state.h"

namespace facet {

using grammar::Automaton;
using grammar::Frame;
using grammar::Item;
using grammar::Plain;
using grammar::plain_character;
using grammar::PlainRun;
using grammar::Stepper;

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

// Goes through the trie with an automaton. Nearly all steps have one item whose rule goes on; they take a table of the
// node's targets, and everything else the stepper.
class Walk {
 public:
  // lone: stacks that say nothing when their rule ends but that it has: the empty one, or the escape.
  Walk(const GrammarVocab& vocab, const Automaton& a, Stepper& stepper, grammar::Stacks::Set lone)
      : trie_(vocab.trie()),
        a_(a),
        stepper_(stepper),
        lone_(lone),
        lone_escapes_(lone != grammar::Stacks::kEmptyStack) {
    if (index_.walk.size() < a.nodes.size())
      index_.walk.resize(a.nodes.size(), 0), index_.place.resize(a.nodes.size(), 0);
    if (index_.pool.size() > kKeptTables) index_.pool.resize(kKeptTables);
    index_.used = 0;
    if (++index_.now == 0) std::fill(index_.walk.begin(), index_.walk.end(), 0), index_.now = 1;
  }

  // Calls tokens(begin, end) for runs of trie.tokens that may follow, and ended(node) where the stack decides; where it
  // does so at each code point of a subtree, all_ended(node, kinds of its code points) once. Begins with the children
  // of a trie node.
  template <class Tokens, class Ended, class AllEnded>
  void run(uint32_t root, const std::vector<Item>& items, const Tokens& tokens, const Ended& ended,
           const AllEnded& all_ended) {
    const uint32_t base = trie_.depth[root];
    list_.assign(items.begin(), items.end());
    end_[0] = list_.size();
    begin_[0] = 0;
    for (uint32_t i = root + 1, last = trie_.next[root]; i < last;) {
      const uint32_t d = trie_.depth[i] - base;
      const size_t from = begin_[d - 1], to = end_[d - 1];
      list_.resize(to);
      const Hot* hot = to - from == 1 ? hot_of(list_[from].node) : nullptr;
      if (hot && !(trie_.below[i] & ~hot->kinds) && plain_subtree(*hot, i, list_[from].stacks, tokens, all_ended)) {
        i = trie_.next[i];
        continue;
      }
      if (hot) {
        const uint32_t target = hot->to[trie_.byte[i]];
        if (target == kNowhere) {
          i = trie_.next[i];
          continue;
        }
        const uint8_t flags = a_.nodes[target].flags;
        const grammar::Stacks::Set stacks = list_[from].stacks;
        const bool lone = stacks == lone_ || stacks == grammar::Stacks::kEmptyStack;
        if (!(flags & Automaton::kCalls) && (lone || !(flags & Automaton::kFinal)) &&
            fits(a_.nodes[target].need, stacks)) {
          tokens(trie_.tokens_[i], trie_.tokens_[i + 1]);
          if ((flags & Automaton::kFinal) && stacks == lone_ && lone_escapes_ && trie_.next[i] > i + 1) ended(i);
          if (flags & Automaton::kTerminals) {
            list_.push_back({target, stacks});
            begin_[d] = to;
            end_[d] = to + 1;
            ++i;
          } else {
            i = trie_.next[i];
          }
          continue;
        }
      }
      bool may_end;
      if (!stepper_.step(list_, from, to, trie_.byte[i], may_end)) {
        i = trie_.next[i];
        continue;
      }
      tokens(trie_.tokens_[i], trie_.tokens_[i + 1]);
      begin_[d] = to;
      end_[d] = list_.size();
      for (size_t k = to; k < end_[d]; ++k) {
        const Item item = list_[k];
        if (item.node == Automaton::kEscape) {
          if (trie_.next[i] > i + 1) ended(i);
          list_[k] = list_.back();
          list_.pop_back();
          --end_[d];
          --k;
        } else {
          depth_ = std::max(depth_, stepper_.stacks().depth(item.stacks) + a_.nodes[item.node].need);
        }
      }
      i = end_[d] > to ? i + 1 : trie_.next[i];
    }
  }
  // Likewise for one trie node and what is below it; item: where the bytes before it have led.
  template <class Tokens, class Ended, class AllEnded>
  void enter(uint32_t n, Item item, const Tokens& tokens, const Ended& ended, const AllEnded& all_ended) {
    std::vector<Item>& items = entered_;
    items.assign(1, item);
    bool may_end;
    if (!stepper_.step(items, 0, 1, trie_.byte[n], may_end)) return;
    tokens(trie_.tokens_[n], trie_.tokens_[n + 1]);
    const bool inner = trie_.next[n] > n + 1;
    size_t kept = 0;
    for (size_t k = 1; k < items.size(); ++k) {
      if (items[k].node == Automaton::kEscape) {
        if (inner) ended(n);
        continue;
      }
      depth_ = std::max(depth_, stepper_.stacks().depth(items[k].stacks) + a_.nodes[items[k].node].need);
      items[kept++] = items[k];
    }
    items.resize(kept);
    if (kept > 0 && inner) run(n, items, tokens, ended, all_ended);
  }
  // Whether this node's need leaves room on the stacks; counts towards depth().
  bool fits(uint32_t need, grammar::Stacks::Set stacks) {
    const uint32_t depth = stepper_.stacks().depth(stacks) + need;
    depth_ = std::max(depth_, depth);
    return depth <= a_.max_depth;
  }
  uint32_t depth() const { return depth_; }

 private:
  static constexpr uint32_t kNowhere = UINT32_MAX;
  static constexpr size_t kKeptTables = 4096;
  struct Hot {
    // So many characters of these kinds lead through nodes that want nothing but to go on.
    uint16_t kinds = 0, run = 0;
    bool final = false;   // one of these nodes is
    bool finals = false;  // all of them are, but perhaps the first
    bool stops = false;   // behind so many no character of these kinds may come
    uint32_t need = 0;    // the most of these nodes
    std::array<uint32_t, 256> to;
  };
  // By node, for one thread; entries of earlier walks are told by their number.
  struct HotIndex {
    std::vector<uint32_t> walk, place;
    std::deque<Hot> pool;
    size_t used = 0;
    uint32_t now = 0;
  };
  static HotIndex& index() {
    thread_local HotIndex hot;
    return hot;
  }
  // A subtree of plain characters alone, without a look at its nodes. False: they have to be looked at.
  template <class Tokens, class AllEnded>
  bool plain_subtree(const Hot& hot, uint32_t i, grammar::Stacks::Set stacks, const Tokens& tokens,
                     const AllEnded& all_ended) {
    const bool ends = hot.final && !ends_alone(stacks), all = trie_.chars[i] <= hot.run;
    if (ends && !(all && hot.finals && stacks == lone_ && lone_escapes_)) return false;
    if (!all && !hot.stops) return false;
    if (!fits(hot.need, stacks)) return false;
    const uint32_t begin = trie_.tokens_[i], end = trie_.tokens_[trie_.next[i]];
    if (all) {
      tokens(begin, end);
      if (ends && trie_.next[i] > i + 1) all_ended(i, hot.kinds);
      return true;
    }
    const uint32_t most = uint32_t(trie_.before[i]) + hot.run;
    for (uint32_t k = begin; k < end;) {
      uint32_t to = k;
      while (to < end && trie_.token_chars[to] <= most) ++to;
      if (to > k) tokens(k, to);
      k = to + 1;
    }
    return true;
  }
  // Whether a node takes no byte of these kinds.
  bool takes_none(uint32_t node, uint16_t kinds) const {
    for (const auto& r : a_.ranges_of(node))
      for (int b = r.lo; b <= r.hi; ++b)
        if (kinds >> GrammarVocab::kind_of(uint8_t(b)) & 1) return false;
    return true;
  }
  // Where the rule's end is the answer's end, which no longer token needs.
  bool ends_alone(grammar::Stacks::Set stacks) const { return stacks == grammar::Stacks::kEmptyStack; }
  // Null if the node's ranges overlap.
  const Hot* hot_of(uint32_t node) {
    if (node == last_node_) return last_;
    const Hot* found = a_.nodes[node].flags & Automaton::kOverlaps ? nullptr : &made(node, 0);
    last_node_ = node;
    return last_ = found;
  }
  const Hot& made(uint32_t node, int ahead) {
    if (index_.walk[node] == index_.now) return index_.pool[index_.place[node]];
    index_.walk[node] = index_.now;
    index_.place[node] = uint32_t(index_.used);
    if (index_.used == index_.pool.size()) index_.pool.emplace_back();
    Hot& hot = index_.pool[index_.used++];
    hot.to.fill(kNowhere);
    for (const auto& r : a_.ranges_of(node)) std::fill(hot.to.begin() + r.lo, hot.to.begin() + r.hi + 1, r.to);
    const Plain plain = plain_character(a_, node);
    hot.kinds = plain.kinds;
    hot.run = plain.kinds ? (plain.next == node ? UINT8_MAX : 1) : 0;
    hot.final = (a_.nodes[node].flags | a_.nodes[plain.next].flags) & Automaton::kFinal;
    hot.finals = a_.nodes[plain.next].flags & Automaton::kFinal;
    hot.stops = hot.run == 1 && takes_none(plain.next, hot.kinds);
    hot.need = std::max(a_.nodes[node].need, a_.nodes[plain.next].need);
    if (hot.run != 1 || ahead == Automaton::kHorizon || (a_.nodes[plain.next].flags & Automaton::kOverlaps)) return hot;
    const Hot next = made(plain.next, ahead + 1);  // on a cycle one that is not complete, and says too little
    if (hot.kinds & ~next.kinds) return hot;
    hot.stops = next.stops && hot.run + next.run < UINT8_MAX;
    hot.run = uint16_t(std::min(hot.run + next.run, UINT8_MAX));
    hot.final |= next.final;
    hot.finals &= next.finals;
    hot.need = std::max(hot.need, next.need);
    return hot;
  }

  const GrammarVocab::Trie& trie_;
  const Automaton& a_;
  Stepper& stepper_;
  std::vector<Item> list_, entered_;
  size_t begin_[Automaton::kHorizon + 1], end_[Automaton::kHorizon + 1];
  uint32_t depth_ = 0;
  const grammar::Stacks::Set lone_;
  const bool lone_escapes_;
  HotIndex& index_ = index();
  uint32_t last_node_ = kNowhere;
  const Hot* last_ = nullptr;
};

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
  if (plain_run(a, node, vocab_->trie(), run) && walk.fits(run.need, start.stacks)) {
    made->bits.assign(vocab_->mask_words(), 0);
    vocab_->allow_kinds(run.kinds, run.length, made->bits);
    if (!in_root) made->run_ends = run.ends, made->run_kinds = run.kinds;
    run.for_others(vocab_->trie(), [&](uint32_t trie_node, uint32_t from) {
      walk.enter(trie_node, {from, start.stacks}, allow, ended, all_ended);
    });
  } else {
    walk.run(0, {start}, allow, ended, all_ended);
  }
  sort_children(vocab_->trie(), ends, made->after, made->after_byte);
  made->depth = in_root ? walk.depth() : std::max(walk.depth(), 1u) - 1;  // less the escape
  const std::lock_guard lock(mutex_);
  const auto [it, fresh] = nodes_.try_emplace(a.classes[node], made);
  if (fresh) node_bytes_ += made->bytes();
  return it->second;
}

void GrammarMasks::compute(const GrammarState& state, std::span<uint32_t> mask) {
  const Automaton& a = state.grammar()->automaton();
  std::fill(mask.begin(), mask.end(), 0);
  if (state.may_end())
    for (const int32_t id : vocab_->eog()) set_bit(mask, id);
  const size_t n_items = state.words()[1];
  std::vector<NodeMaskPtr> parts;  // before the stepper is used: they use it too
  for (size_t i = 0; i < n_items; ++i) parts.push_back(node_mask(a, state.words()[2 + 2 * i]));

  Stepper& stepper = grammar::thread_stepper(a);
  Frame frame, below;
  load_frame(state.words(), stepper.stacks(), frame);
  const auto& trie = vocab_->trie();
  const auto allow = [&](uint32_t begin, uint32_t end) {
    for (uint32_t k = begin; k < end; ++k) set_bit(mask, trie.tokens[k]);
  };
  const auto ignore = [](uint32_t) {};
  const auto ignore_all = [](uint32_t, uint16_t) {};
  Walk walk(*vocab_, a, stepper, grammar::Stacks::kEmptyStack);
  for (size_t i = 0; i < n_items; ++i) {
    const Item item = frame.items[i];
    const NodeMask& part = *parts[i];
    for (const auto& e : a.tokens_of(item.node)) {
      Frame next;
      const int32_t id = vocab_->special(e.token);
      if (id < 0) continue;
      stepper.step(Frame{{item}, false}, e.token, next);
      if (next.alive()) set_bit(mask, id);
    }
    if (stepper.stacks().depth(item.stacks) + part.depth > a.max_depth) {  // too deep for some tokens
      walk.run(0, {item}, allow, ignore, ignore_all);
      continue;
    }
    if (!part.bits.empty())
      for (size_t w = 0; w < mask.size(); ++w) mask[w] |= part.bits[w];
    for (const int32_t t : part.tokens) set_bit(mask, t);
    if (part.after.empty() && part.whole.empty() && !part.run_ends) continue;
    stepper.pop(item, below);
    if (below.items.empty()) continue;
    for (size_t b = 0; b < 256; ++b) {
      const bool in_whole = part.has_whole(uint8_t(b));
      if (part.after_byte[b] == part.after_byte[b + 1] && !in_whole && !part.run_ends) continue;
      Frame next;
      stepper.step(below, uint8_t(b), next);
      if (!next.alive()) continue;
      const auto go_on = [&](uint32_t child) {
        allow(trie.tokens_[child], trie.tokens_[child + 1]);
        if (!next.items.empty() && trie.next[child] > child + 1) walk.run(child, next.items, allow, ignore, ignore_all);
      };
      for (uint32_t k = part.after_byte[b]; k < part.after_byte[b + 1]; ++k) go_on(part.after[k]);
      if (in_whole) part.for_whole(trie, uint8_t(b), go_on);
      if (part.run_ends) part.for_run(trie, uint8_t(b), go_on);
    }
  }
  for (const int32_t id : vocab_->long_tokens())
    if (GrammarState(state).advance(*vocab_, id)) set_bit(mask, id);
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

GrammarMasks::StateMaskPtr GrammarMasks::state_mask(const GrammarState& state) {
  auto made = std::make_shared<StateMask>();
  const uint64_t id = state.grammar()->id();
  made->key = {uint32_t(id), uint32_t(id >> 32)};
  made->key.insert(made->key.end(), state.words().begin(), state.words().end());
  {
    const std::lock_guard lock(mutex_);
    if (const auto it = states_.find(made->key); it != states_.end()) {
      recent_.splice(recent_.begin(), recent_, it->second);
      ++stats_.state_hits;
      return recent_.front();
    }
    ++stats_.state_misses;
  }
  made->bits.resize(vocab_->mask_words());
  compute(state, made->bits);
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

void GrammarMasks::mask(const GrammarState& state, std::span<uint32_t> mask) {
  CHECK(mask.size() == vocab_->mask_words(), "a mask of {} words, the vocabulary has {}", mask.size(),
        vocab_->mask_words());
  if (state.asleep()) return std::fill(mask.begin(), mask.end(), ~uint32_t(0));
  const StateMaskPtr made = state_mask(state);
  std::copy(made->bits.begin(), made->bits.end(), mask.begin());
}

int32_t GrammarMasks::forced_token(const GrammarState& state) {
  return state.asleep() ? -1 : state_mask(state)->forced;
}

GrammarMasks::Stats GrammarMasks::stats() const {
  const std::lock_guard lock(mutex_);
  Stats s = stats_;
  s.bytes = node_bytes_ + state_bytes_;
  return s;
}

}  // namespace facet
