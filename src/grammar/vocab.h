#pragma once
#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "grammar/builder.h"
#include "tokenizer/tokenizer.h"

namespace facet {

// A vocabulary as grammars see it: ordinary tokens are bytes, ordered in a trie; special tokens stand for themselves
// and match no text. Control, unused and suppressed tokens never match anything. Made once for a tokenizer.
class GrammarVocab {
 public:
  explicit GrammarVocab(const Tokenizer& tokenizer);
  // For tests: texts by id ("" matches nothing), ids of special tokens or -1, tokens that end a generation.
  GrammarVocab(std::vector<std::string> texts, std::array<int32_t, grammar::kSpecialTokens> specials,
               std::vector<int32_t> eog);

  int size() const { return int(texts_.size()); }
  size_t mask_words() const { return (texts_.size() + 31) / 32; }
  // The bytes an ordinary token stands for; empty for all others.
  std::string_view text(int32_t id) const { return texts_[size_t(id)]; }
  int32_t special(grammar::SpecialToken t) const { return specials_[size_t(t)]; }
  int special_of(int32_t id) const;  // a SpecialToken, or -1
  const std::vector<int32_t>& eog() const { return eog_; }
  bool is_eog(int32_t id) const;

  // Preorder; node 0 is the root. Tokens of a node and everything under it are neighbours in tokens.
  struct Trie {
    std::vector<uint8_t> byte, depth;
    std::vector<uint8_t> chars;              // code points, at most, from the node's byte on
    std::vector<uint8_t> before;             // code points that begin before the node's byte
    std::vector<uint16_t> below;             // kinds of the node's byte and those under it, kind_of() as bits; kNotText
    std::vector<uint16_t> path;              // kinds of the bytes before the node's; kNotText: no whole code points
    std::vector<uint32_t> next;              // behind the node's subtree
    std::vector<uint32_t> tokens_;           // first in tokens; one more at the end
    std::vector<int32_t> tokens;             // ids
    std::vector<uint8_t> token_chars;        // code points of each of tokens
    std::vector<uint32_t> by_byte;           // nodes but the root, sorted by their byte
    std::array<uint32_t, 257> byte_begin{};  // first in by_byte
  };
  const Trie& trie() const { return trie_; }
  // Sets the bits of the tokens in the trie that are at most so many code points of these kinds, the last perhaps
  // begun.
  void allow_kinds(uint16_t kinds, uint32_t most, std::vector<uint32_t>& mask) const;
  // Tokens of more bytes than the trie holds (Automaton::kHorizon).
  const std::vector<int32_t>& long_tokens() const { return long_; }

  static int kind_of(uint8_t byte);              // 0 to 14
  static constexpr int kHighKind = 14;           // from U+0080 on, but for:
  static constexpr int kPunctuationKind = 4;     // U+2000 to U+2FFF; some dialects' . leaves two of them out
  static constexpr uint16_t kNotText = 1 << 15;  // from the node's byte on, some token is not whole code points

 private:
  void build();
  std::vector<std::string> texts_;
  std::array<int32_t, grammar::kSpecialTokens> specials_;
  std::vector<int32_t> eog_, long_;
  // By id, padded to whole words of a mask: the kinds of its bytes, kNotText if it is something else than whole code
  // points and perhaps the beginning of one more; code points.
  std::vector<uint16_t> token_kinds_;
  std::vector<uint8_t> token_chars_;
  Trie trie_;
};

}  // namespace facet
