#include "grammar/likely.h"

#include <bitset>
#include <optional>
#include <string>
#include <utility>

#include "grammar/state.h"
#include "grammar/stepper.h"

namespace facet {
namespace {

using grammar::Automaton;
using grammar::Frame;
using grammar::Stepper;

constexpr size_t kMostBytes = 64;  // of a text between special tokens
constexpr size_t kLookBack = 96;   // tokens in which whitespace is looked for
// Bytes that may begin a JSON value are fewer, those that may go on with a string's text more.
constexpr size_t kFew = 24;

bool is_space(unsigned char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }

// Bytes and special tokens that may come next.
struct Next {
  std::bitset<256> spaces, others;
  std::optional<grammar::SpecialToken> special = {};
  bool specials = false;  // more than one
  bool only_special() const { return special && !specials && spaces.none() && others.none(); }
  int only_byte() const {
    if (special || spaces.count() + others.count() != 1) return -1;
    return first(spaces.any() ? spaces : others);
  }
  static int first(const std::bitset<256>& s) {
    int b = 0;
    while (!s[size_t(b)]) ++b;
    return b;
  }
};
Next next_of(const Automaton& a, const Frame& frame, GrammarWork& work) {
  Next n;
  for (const grammar::Item& item : frame.items) {
    if (!work.spend(1 + a.ranges_of(item.node).size())) break;
    for (const Automaton::TokenEdge& e : a.tokens_of(item.node)) {
      n.specials = n.specials || (n.special && *n.special != e.token);
      n.special = e.token;
    }
    for (const Automaton::Range& r : a.ranges_of(item.node))
      for (int b = r.lo; b <= r.hi; ++b) (is_space(uint8_t(b)) ? n.spaces : n.others).set(size_t(b));
  }
  return n;
}

// What last followed the character at the end of the text.
std::string usual_space(std::string_view text) {
  if (text.empty() || is_space(uint8_t(text.back()))) return "";
  const char c = text.back();
  for (size_t at = text.size() - 1; at-- > 0;) {
    if (text[at] != c) continue;
    size_t end = at + 1;
    while (end < text.size() && is_space(uint8_t(text[end]))) ++end;
    return std::string(text.substr(at + 1, end - at - 1));
  }
  return c == ',' || c == ':' ? " " : "";
}

std::string text_of(const GrammarVocab& vocab, std::span<const int32_t> ids) {
  std::string s;
  for (const int32_t id : ids)
    if (id >= 0 && id < vocab.size()) s += vocab.text(id);
  return s;
}
Frame frame_of(const GrammarState& state, Stepper& stepper) {
  Frame frame;
  grammar::load_frame(state.words(), stepper, frame);
  return frame;
}

}  // namespace

LikelyText likely_text(const GrammarState& state, std::string_view given) {
  const Automaton& a = state.grammar()->automaton();
  Stepper& stepper = grammar::thread_stepper(a);
  Frame frame = frame_of(state, stepper);
  LikelyText t;
  std::string before(given), space;  // space: guessed and still to be written
  bool guessed = false, spaced = false;
  const size_t from = before.size();
  const auto write = [&](int byte) {
    Frame next;
    stepper.step(frame, uint8_t(byte), next);
    std::swap(frame, next);
    before += char(byte);
  };
  while (frame.alive() && before.size() - from < kMostBytes && !stepper.work().over()) {
    const Next next = next_of(a, frame, stepper.work());
    t.closed = frame.may_end ? frame.items.empty() : next.only_special();
    if (frame.may_end || next.special) break;
    if (const int only = next.only_byte(); only >= 0) {
      write(only), spaced = false;
    } else if (next.spaces.any() && next.others.count() <= kFew) {
      if (!spaced) {
        space = usual_space(before), spaced = true;
        if (!guessed) t.sure = before.size() - from, guessed = true;
      }
      if (!space.empty() && next.spaces[uint8_t(space[0])])
        write(uint8_t(space[0])), space.erase(0, 1);
      else if (space.clear(); next.others.count() == 1)
        write(Next::first(next.others)), spaced = false;
      else
        break;
    } else {
      break;
    }
  }
  if (stepper.work().over()) return {};
  t.bytes = before.substr(from);
  if (!guessed) t.sure = t.bytes.size();
  return t;
}

LikelyTokens likely_tokens(const GrammarState& state, const GrammarVocab& vocab, const Tokenizer& tokenizer,
                           std::span<const int32_t> history, int most) {
  const Automaton& a = state.grammar()->automaton();
  LikelyTokens out;
  GrammarState s = state;
  bool sure = true;
  const auto add = [&](int32_t id, bool is_sure) {
    if (int(out.token.size()) >= most || !s.advance(vocab, id)) return false;
    sure = sure && is_sure;
    out.token.push_back(id), out.sure.push_back(sure);
    return true;
  };
  for (;;) {
    Stepper& stepper = grammar::thread_stepper(a);
    const Next next = next_of(a, frame_of(s, stepper), stepper.work());
    if (stepper.work().over()) return out;
    if (next.only_special()) {
      if (s.may_end() || !add(vocab.special(*next.special), true)) return out;
      continue;
    }
    if (s.may_end() || next.special || (next.only_byte() < 0 && (next.spaces.none() || next.others.count() > kFew)))
      return out;
    const std::span<const int32_t> tail = history.last(std::min(history.size(), kLookBack));
    const LikelyText text = likely_text(s, text_of(vocab, tail) + text_of(vocab, out.token));
    size_t bytes = 0;
    for (const int32_t id : tokenizer.encode(text.bytes, false, false)) {
      if (vocab.text(id).empty()) return out;
      bytes += vocab.text(id).size();
      if (!add(id, bytes <= text.sure && (bytes < text.bytes.size() || text.closed))) return out;
    }
    if (!text.closed) return out;
  }
}

}  // namespace facet
