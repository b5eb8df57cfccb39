#include "grammar/vocab.h"

#include <algorithm>
#include <numeric>

#include "grammar/automaton.h"
#include "tokenizer/utf8.h"

namespace facet {

GrammarVocab::GrammarVocab(const Tokenizer& tokenizer) {
  const Tokenizer::Special& ids = tokenizer.special();
  specials_ = {ids.quote, ids.tool_call_open, ids.tool_call_close, ids.channel_open, ids.channel_close};
  eog_ = tokenizer.eog();
  const std::vector<int32_t>& suppressed = tokenizer.suppressed();
  texts_.resize(size_t(tokenizer.size()));
  for (int32_t id = 0; id < tokenizer.size(); ++id) {
    const int type = tokenizer.vocab().types[size_t(id)];
    if (tokenizer.is_special(id) || (type != kNormal && type != kByte)) continue;
    if (std::binary_search(suppressed.begin(), suppressed.end(), id) || special_of(id) >= 0) continue;
    texts_[size_t(id)] = tokenizer.piece(id);
  }
  build();
}

GrammarVocab::GrammarVocab(std::vector<std::string> texts, std::array<int32_t, grammar::kSpecialTokens> specials,
                           std::vector<int32_t> eog)
    : texts_(std::move(texts)), specials_(specials), eog_(std::move(eog)) {
  for (const int32_t id : eog_) texts_[size_t(id)].clear();
  for (const int32_t id : specials_)
    if (id >= 0) texts_[size_t(id)].clear();
  build();
}

int GrammarVocab::special_of(int32_t id) const {
  for (int t = 0; t < grammar::kSpecialTokens; ++t)
    if (specials_[size_t(t)] == id) return t;
  return -1;
}

bool GrammarVocab::is_eog(int32_t id) const { return std::find(eog_.begin(), eog_.end(), id) != eog_.end(); }

int GrammarVocab::kind_of(uint8_t b) {
  if (b >= 0x80) return b == 0xE2 ? kPunctuationKind : kHighKind;
  switch (b) {
    case '"':
      return 0;
    case '\\':
      return 1;
    case '<':
      return 2;
    case '|':
    case '>':
      return 3;
    case '\n':
      return 5;
    case '\r':
      return 6;
    case ' ':
      return 7;
    case '_':
      return 8;
    case '-':
      return 9;
    default:
      break;
  }
  if (b < 0x20) return 6;
  if (b >= '0' && b <= '9') return 10;
  if (b >= 'a' && b <= 'z') return 11;
  if (b >= 'A' && b <= 'Z') return 12;
  return 13;
}

namespace {
size_t code_points(std::string_view s) {
  return size_t(std::count_if(s.begin(), s.end(), [](char c) { return (uint8_t(c) & 0xC0) != 0x80; }));
}
// begun: the last may lack bytes.
bool whole_code_points(std::string_view s, bool begun = false) {
  while (!s.empty()) {
    const Utf8Head head = utf8_head(s);
    if (begun && head.kind == Utf8Head::kIncomplete) return true;
    if (head.kind != Utf8Head::kValid) return false;
    s.remove_prefix(size_t(head.length));
  }
  return true;
}
}  // namespace

void GrammarVocab::allow_kinds(uint16_t kinds, uint32_t most, std::vector<uint32_t>& mask) const {
  const uint16_t others = uint16_t(~kinds);
  for (size_t w = 0; w < mask.size(); ++w) {
    uint8_t allowed[32];  // a loop that becomes vector instructions
    for (size_t i = 0; i < 32; ++i)
      allowed[i] = uint8_t(!(token_kinds_[w * 32 + i] & others)) & uint8_t(token_chars_[w * 32 + i] <= most);
    uint32_t bits = 0;
    for (size_t i = 0; i < 32; ++i) bits |= uint32_t(allowed[i]) << i;
    mask[w] |= bits;
  }
}

void GrammarVocab::build() {
  std::vector<int32_t> order;
  token_kinds_.assign(mask_words() * 32, kNotText);
  token_chars_.assign(mask_words() * 32, 0);
  for (int32_t id = 0; id < size(); ++id) {
    if (texts_[size_t(id)].empty()) continue;
    if (texts_[size_t(id)].size() > size_t(grammar::Automaton::kHorizon))
      long_.push_back(id);
    else
      order.push_back(id);
  }
  std::stable_sort(order.begin(), order.end(),
                   [&](int32_t a, int32_t b) { return texts_[size_t(a)] < texts_[size_t(b)]; });
  Trie& t = trie_;
  const auto node = [&](uint8_t byte, size_t depth) {
    t.byte.push_back(byte);
    t.depth.push_back(uint8_t(depth));
    t.chars.push_back(0);
    t.before.push_back(0);
    t.below.push_back(0);
    t.path.push_back(0);
    t.next.push_back(0);
    t.tokens_.push_back(uint32_t(t.tokens.size()));
  };
  std::vector<uint32_t> path{0};  // nodes from the root to the last
  node(0, 0);
  std::string_view last;
  for (const int32_t id : order) {
    const std::string_view text = texts_[size_t(id)];
    size_t common = 0;
    while (common < std::min(text.size(), last.size()) && text[common] == last[common]) ++common;
    for (; path.size() > common + 1; path.pop_back()) t.next[path.back()] = uint32_t(t.byte.size());
    for (size_t i = common; i < text.size(); ++i) {
      path.push_back(uint32_t(t.byte.size()));
      node(uint8_t(text[i]), i + 1);
    }
    t.tokens.push_back(id);
    t.token_chars.push_back(uint8_t(code_points(text)));
    constexpr uint16_t kHigh = 1 << kHighKind | 1 << kPunctuationKind;
    uint16_t so_far = 0;
    for (size_t i = 0; i < text.size(); ++i) {
      if (i >= common) {
        t.before[path[i + 1]] = uint8_t(code_points(text.substr(0, i)));
        const bool whole = !(so_far & kHigh) || whole_code_points(text.substr(0, i));
        t.path[path[i + 1]] = uint16_t(so_far | (whole ? 0 : kNotText));
      }
      so_far |= uint16_t(1 << kind_of(uint8_t(text[i])));
    }
    token_kinds_[size_t(id)] = uint16_t(so_far | (whole_code_points(text, true) ? 0 : kNotText));
    token_chars_[size_t(id)] = t.token_chars.back();
    // From each byte of the path on.
    uint16_t kinds = 0;
    uint8_t chars = 0;
    for (size_t i = text.size(); i-- > 0;) {
      chars += (uint8_t(text[i]) & 0xC0) != 0x80;
      t.chars[path[i + 1]] = std::max(t.chars[path[i + 1]], chars);
      kinds |= uint16_t(1 << kind_of(uint8_t(text[i])));
      t.below[path[i + 1]] |= kinds;
      if (kinds & kHigh && !whole_code_points(text.substr(i))) t.below[path[i + 1]] |= kNotText;
    }
    last = text;
  }
  for (; !path.empty(); path.pop_back()) t.next[path.back()] = uint32_t(t.byte.size());
  t.tokens_.push_back(uint32_t(t.tokens.size()));
  for (size_t n = 1; n < t.byte.size(); ++n) ++t.byte_begin[size_t(t.byte[n]) + 1];
  for (size_t b = 0; b < 256; ++b) t.byte_begin[b + 1] += t.byte_begin[b];
  std::array<uint32_t, 257> at = t.byte_begin;
  t.by_byte.resize(t.byte_begin[256]);
  for (size_t n = 1; n < t.byte.size(); ++n) t.by_byte[at[t.byte[n]]++] = uint32_t(n);
}

}  // namespace facet
