#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "tokenizer/text_range.h"
#include "tokenizer/vocab.h"

namespace facet {

// Gemma 4's tokenizer: ranked merges over Unicode code points, spaces written as U+2581, bytes as a fallback.
// Special tokens are found by their text; their ids differ between files.
class Tokenizer {
 public:
  // Checks the vocabulary; an error names every token that is required and missing.
  static Result<Tokenizer> create(Vocab vocab);
  Tokenizer(Tokenizer&&) = default;
  Tokenizer& operator=(Tokenizer&&) = default;
  Tokenizer(const Tokenizer&) = delete;  // the tables hold views into vocab_
  Tokenizer& operator=(const Tokenizer&) = delete;

  // Text to ids. add_bos: the result begins with exactly one <bos> (one that the text itself begins with
  // counts). parse_special: control tokens spelled in the text become those tokens; without it only
  // user-defined tokens do, except <|tool_response>, as in llama.cpp.
  // plain: ranges of the text, ascending and apart, in which structure is characters: no control token and none of
  // the form <|...> or <...|> is found where one of its bytes lies there.
  std::vector<int32_t> encode(std::string_view text, bool add_bos, bool parse_special,
                              std::span<const TextRange> plain = {}) const;

  // Ids to valid UTF-8: ill-formed bytes become U+FFFD. Control tokens give nothing unless show_special.
  std::string decode(std::span<const int32_t> ids, bool show_special) const;

  // The bytes of one token as decode sees them; possibly part of a UTF-8 sequence.
  std::string_view piece(int32_t id) const { return pieces_[check_id(id)]; }
  // The token as the vocabulary spells it: "▁Hello", "<0x0A>", "<turn|>".
  const std::string& text(int32_t id) const { return vocab_.tokens[check_id(id)]; }
  bool is_special(int32_t id) const { return special_[check_id(id)]; }  // shown only with show_special
  int32_t find(std::string_view token) const;                           // -1 if absent
  int size() const { return int(vocab_.tokens.size()); }
  bool valid(int64_t id) const { return id >= 0 && id < size(); }

  // Tokens that end a generation: <eos>, <turn|> and <|tool_response>, and others that the file declares.
  const std::vector<int32_t>& eog() const { return eog_; }
  bool is_eog(int32_t id) const;
  // Tokens that must never be sampled: the file's suppress_tokens and the placeholders of image, audio and
  // video.
  const std::vector<int32_t>& suppressed() const { return suppressed_; }  // ascending

  struct Special {
    int32_t bos, eos, turn_open, turn_close, channel_open, channel_close, tool_call_open, tool_call_close,
        tool_response_open, tool_response_close, quote, think;
    int32_t pad, mask;  // -1 if the vocabulary has none
  };
  const Special& special() const { return ids_; }
  int32_t bos() const { return ids_.bos; }
  int32_t mask() const { return ids_.mask; }
  int32_t pad() const { return ids_.pad; }
  const Vocab& vocab() const { return vocab_; }

 private:
  Tokenizer() = default;
  size_t check_id(int32_t id) const;
  void encode_plain(std::string_view raw, std::vector<int32_t>& out) const;
  void encode_piece(std::string_view piece, std::vector<int32_t>& out) const;

  // Texts that merging can meet are numbered: tokens by their id, then parts of merges that are not tokens.
  class TextIndex {
   public:
    void reserve(size_t n);
    void set(std::string_view text, int32_t number);  // replaces
    int32_t find(std::string_view text) const;        // -1 if absent

   private:
    size_t slot_of(std::string_view text) const;
    std::vector<std::string_view> keys_;
    std::vector<int32_t> numbers_;
    size_t used_ = 0;
  };
  struct Merge {
    uint64_t pair = kNoPair;  // left number << 32 | right number
    uint32_t rank = 0;
    int32_t merged = -1;  // number of the joined text; -1: it can merge no further and is no token
  };
  static constexpr uint64_t kNoPair = ~uint64_t(0);
  const Merge* find_merge(int32_t left, int32_t right) const;
  Status build_merges();
  Status build_specials();
  void find_ends();

  Vocab vocab_;
  std::vector<std::string> pieces_;
  std::vector<bool> special_;
  TextIndex index_;
  std::vector<Merge> merges_;       // open addressing, a power of two
  std::vector<int32_t> partition_;  // specials looked for in text, longest first
  int32_t byte_ids_[256];
  std::vector<int32_t> eog_, suppressed_;
  Special ids_{};
};

// Decodes a stream of ids. A piece never ends inside a UTF-8 sequence, and the pieces together are what
// Tokenizer::decode gives for all ids.
class StreamDecoder {
 public:
  explicit StreamDecoder(const Tokenizer& tokenizer, bool show_special = false)
      : tokenizer_(&tokenizer), show_special_(show_special) {}
  std::string push(int32_t id);
  std::string finish();  // what was held back, as U+FFFD; ready for the next stream

 private:
  const Tokenizer* tokenizer_;
  bool show_special_;
  std::string held_;  // an incomplete sequence, at most 3 bytes
};

}  // namespace facet
