#pragma once
#include <cstdint>
#include <vector>

#include "grammar/automaton.h"
#include "grammar/vocab.h"

// Nodes through which plain characters lead one after the other, as those of [a-z]+ or of a string's text: which tokens
// they let through is said by the tokens' kinds of bytes, without a walk.
namespace facet::grammar {

// Where one plain character leads: the node behind most of them, and the kinds of bytes (GrammarVocab::kind_of) that
// all lead there; kHighKind: every code point from U+0080 does.
struct Plain {
  uint32_t next = Automaton::kEscape;
  uint16_t kinds = 0;
};
// last: the node behind may be one where the rule can only end.
Plain plain_character(const Automaton& a, uint32_t node, bool last = false);

struct PlainRun {
  uint16_t kinds = 0;
  uint32_t length = 0;          // code points of these kinds that may follow; kHorizon: as many as a token has
  uint64_t ends = 0;            // bit j: the rule may end behind j of them, j > 0
  uint32_t need = 0;            // the most of these nodes
  std::vector<uint32_t> nodes;  // behind 0 to length of them
  std::vector<uint8_t> others;  // bytes of no such kind that some of the nodes take

  // f(trie node, where the bytes before it lead), for the nodes of the trie whose byte is the first of another kind.
  template <class F>
  void for_others(const GrammarVocab::Trie& trie, const F& f) const {
    for (const uint8_t byte : others)
      for (uint32_t k = trie.byte_begin[byte]; k < trie.byte_begin[size_t(byte) + 1]; ++k) {
        const uint32_t n = trie.by_byte[k];
        if (!(trie.path[n] & ~kinds) && trie.before[n] <= length) f(n, nodes[trie.before[n]]);
      }
  }
};
// False if the node does not begin one, or a walk takes less time.
bool plain_run(const Automaton& a, uint32_t node, const GrammarVocab::Trie& trie, PlainRun& out);

}  // namespace facet::grammar
