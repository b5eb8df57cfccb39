#include "grammar/plain_run.h"

#include <algorithm>

namespace facet::grammar {

Plain plain_character(const Automaton& a, uint32_t node, bool last) {
  const auto through = [&](uint32_t n) { return (a.nodes[n].flags & ~Automaton::kFinal) == Automaton::kTerminals; };
  if (!through(node)) return {};
  Plain out;
  for (const auto& r : a.ranges_of(node))
    if (r.lo <= 'a' && 'a' <= r.hi) out.next = r.to;
  if (!through(out.next) && !(last && (a.nodes[out.next].flags & Automaton::kPureFinal))) return {};
  bool stays[128] = {};
  for (const auto& r : a.ranges_of(node))
    for (int b = r.lo; b <= std::min<int>(r.hi, 127); ++b) stays[b] = r.to == out.next;
  uint16_t kinds = ((1 << GrammarVocab::kHighKind) - 1) & ~(1 << GrammarVocab::kPunctuationKind);
  for (int b = 0; b < 128; ++b)
    if (!stays[b]) kinds &= uint16_t(~(1 << GrammarVocab::kind_of(uint8_t(b))));
  const auto target = [&](uint32_t from, int lo, int hi, bool end) {  // of all bytes lo to hi, or none
    for (const auto& r : a.ranges_of(from))
      if (r.lo <= lo && hi <= r.hi &&
          (end ? r.to == out.next : a.nodes[r.to].flags == Automaton::kTerminals && a.ranges_of(r.to).size() == 1))
        return r.to;
    return Automaton::kEscape;
  };
  // Leads, and the bounds of what follows them.
  constexpr uint8_t kSequences[][8] = {{0xC2, 0xDF, 0x80, 0xBF},
                                       {0xE0, 0xE0, 0xA0, 0xBF, 0x80, 0xBF},
                                       {0xE1, 0xE1, 0x80, 0xBF, 0x80, 0xBF},
                                       {0xE2, 0xE2, 0x80, 0xBF, 0x80, 0xBF},
                                       {0xE3, 0xEC, 0x80, 0xBF, 0x80, 0xBF},
                                       {0xED, 0xED, 0x80, 0x9F, 0x80, 0xBF},
                                       {0xEE, 0xEF, 0x80, 0xBF, 0x80, 0xBF},
                                       {0xF0, 0xF0, 0x90, 0xBF, 0x80, 0xBF, 0x80, 0xBF},
                                       {0xF1, 0xF3, 0x80, 0xBF, 0x80, 0xBF, 0x80, 0xBF},
                                       {0xF4, 0xF4, 0x80, 0x8F, 0x80, 0xBF, 0x80, 0xBF}};
  uint16_t high = 1 << GrammarVocab::kHighKind | 1 << GrammarVocab::kPunctuationKind;
  for (const auto& s : kSequences) {
    uint32_t at = node;
    for (int i = 0; i < 8 && s[i] && at != Automaton::kEscape; i += 2)
      at = target(at, s[i], s[i + 1], i == 6 || !s[i + 2]);
    if (at == Automaton::kEscape) high &= uint16_t(~(1 << GrammarVocab::kind_of(s[0])));
  }
  out.kinds = kinds | high;
  return out;
}

bool plain_run(const Automaton& a, uint32_t node, const GrammarVocab::Trie& trie, PlainRun& out) {
  constexpr uint16_t kHigh = 1 << GrammarVocab::kHighKind, kPunctuation = 1 << GrammarVocab::kPunctuationKind;
  constexpr uint32_t kMostOthers = 1 << 16;  // nodes of the trie
  Plain plain = plain_character(a, node, true);
  out.kinds = plain.kinds;
  // Bytes inside a code point are of kHighKind: without it no code point is plain.
  if (!(out.kinds & kHigh)) out.kinds &= uint16_t(~kPunctuation);
  if (!out.kinds) return false;
  bool other[256] = {};
  const auto takes = [&](uint32_t n) {
    bool plainly = false;
    for (const auto& r : a.ranges_of(n))
      for (int b = r.lo; b <= r.hi; ++b) {
        const bool of_kinds = out.kinds >> GrammarVocab::kind_of(uint8_t(b)) & 1;
        plainly |= of_kinds;
        other[b] |= !of_kinds;
      }
    out.need = std::max(out.need, a.nodes[n].need);
    return plainly;
  };
  for (uint32_t at = node;;) {
    out.nodes.push_back(at);
    const bool plainly = takes(at);
    if (out.length == uint32_t(Automaton::kHorizon)) break;
    plain = plain_character(a, at, true);
    if (out.kinds & ~plain.kinds) {
      if (plainly || (a.nodes[at].flags & (Automaton::kCalls | Automaton::kOverlaps))) return false;
      break;
    }
    at = plain.next;
    ++out.length;
    if ((a.nodes[at].flags & Automaton::kFinal) && out.length < 64) out.ends |= uint64_t(1) << out.length;
  }
  uint32_t n_others = 0;
  for (size_t b = 0; b < 256; ++b) {
    if (!other[b]) continue;
    out.others.push_back(uint8_t(b));
    n_others += trie.byte_begin[b + 1] - trie.byte_begin[b];
  }
  return n_others <= kMostOthers;
}

}  // namespace facet::grammar
