#include "tokenizer/tokenizer.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <bit>
#include <functional>
#include <queue>

#include "base/check.h"
#include "tokenizer/utf8.h"

namespace facet {
namespace {

constexpr std::string_view kSpace = "\xE2\x96\x81";  // U+2581, how the vocabulary writes a space

// Part of every published Gemma 4 vocabulary; the first five are control tokens even where a file says
// otherwise.
constexpr std::array<std::string_view, 5> kAlwaysControl = {"<pad>", "<eos>", "<bos>", "<unk>", "<mask>"};
constexpr std::array<std::string_view, 3> kEndOfGeneration = {"<eos>", "<turn|>", "<|tool_response>"};
// Printed, and parsed behind that: thoughts and calls are in the text between them. Ollama's converter types them as
// control tokens, so their text decides.
constexpr std::array<std::string_view, 7> kPrintedMarkers = {
    "<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", "<|tool_response>", "<tool_response|>", "<|\"|>"};
// Never printed, and found where a prompt spells them.
constexpr std::array<std::string_view, 5> kHiddenMarkers = {"<|turn>", "<turn|>", "<|think|>", "<|tool>", "<tool|>"};
constexpr std::array<std::string_view, 7> kMediaPlaceholders = {"<|image>", "<|audio>", "<|image|>", "<|audio|>",
                                                                "<image|>", "<audio|>", "<|video|>"};

template <class List>
bool contains(const List& list, std::string_view s) {
  return std::find(list.begin(), list.end(), s) != list.end();
}

// The value of "<0x4F>", or -1.
int byte_value(std::string_view text) {
  if (text.size() != 6 || !text.starts_with("<0x") || text[5] != '>') return -1;
  const auto digit = [](char c) { return c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1; };
  const int high = digit(text[3]), low = digit(text[4]);
  return high < 0 || low < 0 ? -1 : high * 16 + low;
}

std::string replace_all(std::string_view s, std::string_view from, std::string_view to) {
  std::string out;
  for (size_t at; (at = s.find(from)) != std::string_view::npos; s.remove_prefix(at + from.size()))
    out.append(s.substr(0, at)).append(to);
  return out.append(s);
}

// Spaces as U+2581; every byte that does not begin a complete sequence as U+FFFD. As in llama.cpp only the
// bit patterns of lead and continuation bytes are looked at, so an overlong form stays what it is.
std::string normalize(std::string_view raw) {
  std::string out;
  out.reserve(raw.size() + raw.size() / 2);
  for (size_t i = 0; i < raw.size();) {
    if (raw[i] == ' ') {
      out += kSpace;
      ++i;
      continue;
    }
    const int n = utf8_pattern_length(uint8_t(raw[i]));
    bool complete = n > 0 && i + size_t(n) <= raw.size();
    for (int k = 1; complete && k < n; ++k) complete = (uint8_t(raw[i + size_t(k)]) & 0xC0) == 0x80;
    out += complete ? raw.substr(i, size_t(n)) : kReplacement;
    i += complete ? size_t(n) : 1;
  }
  return out;
}

// A run of text between special tokens, or one special token (id >= 0).
struct Fragment {
  std::string_view text;
  int32_t id = -1;
};

struct Symbol {
  uint32_t begin, size;    // bytes of the piece; size 0: merged into its left neighbour
  int32_t previous, next;  // -1 at the ends
  int32_t number;          // in the text index, -1 if no merge knows it
};

// The pair (left, next of left), while it spans size bytes. When either side has changed since, it does not.
struct Candidate {
  uint32_t rank, left, size;
  bool operator<(const Candidate& other) const {  // std heaps have the largest on top
    return rank != other.rank ? rank > other.rank : left > other.left;
  }
};

}  // namespace

// --- tables

void Tokenizer::TextIndex::reserve(size_t n) {
  const size_t slots = std::bit_ceil(2 * n + 1);
  std::vector<std::string_view> keys(slots);
  std::vector<int32_t> numbers(slots, -1);
  keys_.swap(keys);
  numbers_.swap(numbers);
  for (size_t i = 0; i < numbers.size(); ++i) {
    if (numbers[i] < 0) continue;
    const size_t slot = slot_of(keys[i]);
    keys_[slot] = keys[i];
    numbers_[slot] = numbers[i];
  }
}

size_t Tokenizer::TextIndex::slot_of(std::string_view text) const {
  const size_t mask = keys_.size() - 1;
  size_t slot = std::hash<std::string_view>{}(text)&mask;
  while (numbers_[slot] >= 0 && keys_[slot] != text) slot = (slot + 1) & mask;
  return slot;
}

void Tokenizer::TextIndex::set(std::string_view text, int32_t number) {
  size_t slot = slot_of(text);
  if (numbers_[slot] < 0 && 2 * ++used_ > keys_.size()) {
    reserve(used_);
    slot = slot_of(text);
  }
  keys_[slot] = text;
  numbers_[slot] = number;
}

int32_t Tokenizer::TextIndex::find(std::string_view text) const { return numbers_[slot_of(text)]; }

namespace {
size_t pair_hash(uint64_t pair) { return size_t((pair * 0x9E3779B97F4A7C15u) >> 20); }
}  // namespace

const Tokenizer::Merge* Tokenizer::find_merge(int32_t left, int32_t right) const {
  if (left < 0 || right < 0) return nullptr;
  const uint64_t pair = uint64_t(uint32_t(left)) << 32 | uint32_t(right);
  const size_t mask = merges_.size() - 1;
  for (size_t slot = pair_hash(pair) & mask; merges_[slot].pair != kNoPair; slot = (slot + 1) & mask)
    if (merges_[slot].pair == pair) return &merges_[slot];
  return nullptr;
}

Status Tokenizer::build_merges() {
  const size_t n_tokens = vocab_.tokens.size(), n_merges = vocab_.merges.size();
  index_.reserve(n_tokens);
  for (size_t i = 0; i < n_tokens; ++i) index_.set(vocab_.tokens[i], int32_t(i));
  int32_t next = int32_t(n_tokens);
  const auto number = [&](std::string_view text) {
    const int32_t known = index_.find(text);
    if (known >= 0) return known;
    index_.set(text, next);
    return next++;
  };
  std::vector<std::pair<int32_t, int32_t>> pairs(n_merges);
  for (size_t rank = 0; rank < n_merges; ++rank) {
    const std::string_view line = vocab_.merges[rank];
    const size_t at = line.find(' ', 1);  // the left side has at least one byte, which may be a space
    if (at == std::string_view::npos || at + 1 == line.size())
      return Error{vocab_.where,
                   fmt::format("tokenizer.ggml.merges[{}]: expected two texts and a space between them, found \"{}\"",
                               rank, utf8_sanitize(line)),
                   "convert the model again"};
    pairs[rank] = {number(line.substr(0, at)), number(line.substr(at + 1))};
  }
  merges_.assign(std::bit_ceil(2 * n_merges + 1), {});
  const size_t mask = merges_.size() - 1;
  std::string joined;
  for (size_t rank = 0; rank < n_merges; ++rank) {
    const auto [left, right] = pairs[rank];
    const std::string_view line = vocab_.merges[rank];
    const size_t at = line.find(' ', 1);
    joined.assign(line.substr(0, at)).append(line.substr(at + 1));
    const uint64_t pair = uint64_t(uint32_t(left)) << 32 | uint32_t(right);
    size_t slot = pair_hash(pair) & mask;
    while (merges_[slot].pair != kNoPair && merges_[slot].pair != pair) slot = (slot + 1) & mask;
    if (merges_[slot].pair == pair) continue;  // written twice: the better rank counts
    merges_[slot] = {pair, uint32_t(rank), index_.find(joined)};
  }
  return Ok{};
}

Status Tokenizer::build_specials() {
  std::vector<std::string> missing;
  const auto required = [&](std::string_view text) {
    const int32_t id = find(text);
    if (id < 0) missing.emplace_back(text);
    return id;
  };
  ids_ = {.bos = required("<bos>"),
          .eos = required("<eos>"),
          .turn_open = required("<|turn>"),
          .turn_close = required("<turn|>"),
          .channel_open = required("<|channel>"),
          .channel_close = required("<channel|>"),
          .tool_call_open = required("<|tool_call>"),
          .tool_call_close = required("<tool_call|>"),
          .tool_response_open = required("<|tool_response>"),
          .tool_response_close = required("<tool_response|>"),
          .quote = required("<|\"|>"),
          .think = required("<|think|>"),
          .pad = find("<pad>"),
          .mask = find("<mask>")};
  for (int b = 0; b < 256; ++b) byte_ids_[b] = required(fmt::format("<0x{:02X}>", b));
  if (!missing.empty()) {
    const size_t shown = std::min<size_t>(missing.size(), 8);
    const std::string rest = missing.size() > shown ? fmt::format(" and {} more", missing.size() - shown) : "";
    return Error{vocab_.where,
                 fmt::format("tokenizer.ggml.tokens: a Gemma 4 vocabulary has {}{}, found none of them",
                             fmt::join(missing.begin(), missing.begin() + ptrdiff_t(shown), " "), rest),
                 "the file is not a Gemma 4 model, or its conversion dropped special tokens"};
  }

  const size_t n = vocab_.tokens.size();
  find_ends();
  pieces_.resize(n);
  special_.assign(n, false);
  for (size_t i = 0; i < n; ++i) {
    const std::string& text = vocab_.tokens[i];
    int type = vocab_.types[i];
    if (type == kNormal && contains(kAlwaysControl, text)) {
      type = kControl;
      vocab_.notes.push_back(fmt::format("token {} {} has type NORMAL; it is a control token", i, text));
    }
    if (contains(kPrintedMarkers, text)) type = kUserDefined;
    if (contains(kHiddenMarkers, text)) type = kControl;
    // llama.cpp makes every end-of-generation token a control token, <|tool_response>, user-defined in the
    // file, included.
    special_[i] = type == kControl || type == kUnknown || is_eog(int32_t(i));
    const int byte = byte_value(text);
    if (type == kByte && byte < 0)
      return Error{vocab_.where,
                   fmt::format("tokenizer.ggml.tokens[{}]: expected <0x00>..<0xFF> for a byte token, found \"{}\"", i,
                               utf8_sanitize(text)),
                   "convert the model again"};
    if (byte >= 0)
      pieces_[i] = std::string(1, char(byte));
    else if (special_[i] || type == kUserDefined)
      pieces_[i] = text;
    else
      pieces_[i] = replace_all(text, kSpace, " ");
    if ((special_[i] || type == kUserDefined) && !text.empty()) partition_.push_back(int32_t(i));
    if (contains(kMediaPlaceholders, text)) suppressed_.push_back(int32_t(i));
  }
  std::stable_sort(partition_.begin(), partition_.end(), [&](int32_t a, int32_t b) {
    return vocab_.tokens[size_t(a)].size() > vocab_.tokens[size_t(b)].size();
  });
  for (const int32_t id : vocab_.suppress) {
    if (!valid(id)) return Error{vocab_.where, fmt::format("suppressed token {}: expected an id below {}", id, n), ""};
    // Without an end the model talks until the context is full.
    if (is_eog(id))
      vocab_.notes.push_back(fmt::format("suppressed token {} {} ends a generation; it stays allowed", id, text(id)));
    else
      suppressed_.push_back(id);
  }
  std::sort(suppressed_.begin(), suppressed_.end());
  suppressed_.erase(std::unique(suppressed_.begin(), suppressed_.end()), suppressed_.end());
  return Ok{};
}

// The known ends by their text, and what the file declares beside them: a fine-tune may end its turns with a token of
// its own. A byte is none: such ids belong to another vocabulary.
void Tokenizer::find_ends() {
  for (const std::string_view text : kEndOfGeneration) eog_.push_back(find(text));
  for (const int32_t id : vocab_.eos_ids) {
    if (!valid(id) || is_eog(id) || byte_value(text(id)) >= 0) continue;
    eog_.push_back(id);
    vocab_.notes.push_back(
        fmt::format("token {} {} is declared as an end of generation and honoured as one; Gemma 4 "
                    "has no such end",
                    id, utf8_sanitize(text(id))));
  }
}

Result<Tokenizer> Tokenizer::create(Vocab vocab) {
  if (vocab.empty())
    return Error{vocab.where, "the file has no vocabulary (tokenizer.ggml.model is no_vocab)",
                 "give a file with a tokenizer, for example the model this one was made for"};
  if (vocab.types.size() != vocab.tokens.size())
    return Error{
        vocab.where,
        fmt::format("expected as many token types as tokens ({}), found {}", vocab.tokens.size(), vocab.types.size()),
        ""};
  Tokenizer t;
  t.vocab_ = std::move(vocab);
  if (Status s = t.build_merges(); !s) return s.error();
  if (Status s = t.build_specials(); !s) return s.error();
  return t;
}

size_t Tokenizer::check_id(int32_t id) const {
  CHECK(valid(id), "token id {} of {}", id, size());
  return size_t(id);
}

int32_t Tokenizer::find(std::string_view token) const {
  const int32_t number = index_.find(token);
  return number < size() ? number : -1;
}

bool Tokenizer::is_eog(int32_t id) const { return std::find(eog_.begin(), eog_.end(), id) != eog_.end(); }

// --- encode

namespace {

bool overlaps(std::span<const TextRange> ranges, size_t begin, size_t end) {
  const auto at = std::partition_point(ranges.begin(), ranges.end(), [&](TextRange r) { return r.end <= begin; });
  return at != ranges.end() && at->begin < end;
}

}  // namespace

std::vector<int32_t> Tokenizer::encode(std::string_view text, bool add_bos, bool parse_special,
                                       std::span<const TextRange> plain) const {
  std::vector<Fragment> fragments, split;
  if (!text.empty()) fragments.push_back({text});
  for (const int32_t id : partition_) {
    const std::string& token = vocab_.tokens[size_t(id)];
    if (special_[size_t(id)] && !parse_special) continue;
    if (text.find(token) == std::string_view::npos) continue;
    const bool structure = special_[size_t(id)] || token.starts_with("<|") || token.ends_with("|>");
    const std::span<const TextRange> hidden = structure ? plain : std::span<const TextRange>{};
    const auto find_token = [&](std::string_view s) {
      const size_t from = size_t(s.data() - text.data());
      size_t at = s.find(token);
      while (at != std::string_view::npos && overlaps(hidden, from + at, from + at + token.size()))
        at = s.find(token, at + 1);
      return at;
    };
    split.clear();
    for (Fragment f : fragments) {
      if (f.id < 0) {
        for (size_t at; (at = find_token(f.text)) != std::string_view::npos; f.text.remove_prefix(at + token.size())) {
          if (at > 0) split.push_back({f.text.substr(0, at)});
          split.push_back({{}, id});
        }
        if (f.text.empty()) continue;
      }
      split.push_back(f);
    }
    fragments.swap(split);
  }
  std::vector<int32_t> ids;
  if (add_bos && (fragments.empty() || fragments[0].id != ids_.bos)) ids.push_back(ids_.bos);
  for (const Fragment& f : fragments) {
    if (f.id >= 0)
      ids.push_back(f.id);
    else
      encode_plain(f.text, ids);
  }
  return ids;
}

// Runs of newlines and runs of anything else are separate problems. A scan, because lines can be megabytes
// long.
void Tokenizer::encode_plain(std::string_view raw, std::vector<int32_t>& out) const {
  const std::string text = normalize(raw);
  std::string_view rest = text;
  while (!rest.empty()) {
    size_t end = rest[0] == '\n' ? rest.find_first_not_of('\n') : rest.find('\n');
    end = std::min(end, rest.size());
    const std::string_view run = rest.substr(0, end);
    const int32_t whole = run[0] == '\n' ? find(run) : -1;
    if (whole >= 0)
      out.push_back(whole);
    else
      encode_piece(run, out);
    rest.remove_prefix(end);
  }
}

// Merges the adjacent pair of lowest rank, leftmost first, until no merge applies. The heap holds every pair
// that was adjacent at some time; a pair that is not any more spans another number of bytes. O(n log n).
void Tokenizer::encode_piece(std::string_view piece, std::vector<int32_t>& out) const {
  CHECK(piece.size() < size_t(INT32_MAX), "a line of {} bytes", piece.size());
  std::vector<Symbol> symbols;
  symbols.reserve(piece.size());
  for (size_t i = 0; i < piece.size();) {
    const size_t n = std::min(size_t(utf8_pattern_length(uint8_t(piece[i]))), piece.size() - i);
    const int32_t s = int32_t(symbols.size());
    symbols.push_back({uint32_t(i), uint32_t(n), s - 1, s + 1, index_.find(piece.substr(i, n))});
    i += n;
  }
  symbols.back().next = -1;

  std::vector<Candidate> found;
  const auto candidate = [&](int32_t left, int32_t right) {
    const Symbol &a = symbols[size_t(left)], &b = symbols[size_t(right)];
    const Merge* m = find_merge(a.number, b.number);
    return Candidate{m ? m->rank : UINT32_MAX, uint32_t(left), a.size + b.size};
  };
  for (size_t s = 1; s < symbols.size(); ++s)
    if (const Candidate c = candidate(int32_t(s) - 1, int32_t(s)); c.rank != UINT32_MAX) found.push_back(c);
  std::priority_queue<Candidate> heap(std::less<Candidate>{}, std::move(found));

  while (!heap.empty()) {
    const Candidate c = heap.top();
    heap.pop();
    Symbol& left = symbols[c.left];
    if (left.size == 0 || left.next < 0) continue;
    Symbol& right = symbols[size_t(left.next)];
    if (left.size + right.size != c.size) continue;
    left.number = find_merge(left.number, right.number)->merged;
    left.size += right.size;
    right.size = 0;
    left.next = right.next;
    if (left.next >= 0) {
      symbols[size_t(left.next)].previous = int32_t(c.left);
      if (const Candidate n = candidate(int32_t(c.left), left.next); n.rank != UINT32_MAX) heap.push(n);
    }
    if (left.previous >= 0)
      if (const Candidate n = candidate(left.previous, int32_t(c.left)); n.rank != UINT32_MAX) heap.push(n);
  }

  for (int32_t s = 0; s >= 0; s = symbols[size_t(s)].next) {
    const Symbol& symbol = symbols[size_t(s)];
    if (symbol.number >= 0 && symbol.number < size()) {
      out.push_back(symbol.number);
      continue;
    }
    for (const char byte : piece.substr(symbol.begin, symbol.size)) out.push_back(byte_ids_[uint8_t(byte)]);
  }
}

// --- decode

std::string Tokenizer::decode(std::span<const int32_t> ids, bool show_special) const {
  StreamDecoder stream(*this, show_special);
  std::string text;
  for (const int32_t id : ids) text += stream.push(id);
  return text + stream.finish();
}

std::string StreamDecoder::push(int32_t id) {
  if (!tokenizer_->is_special(id) || show_special_) held_ += tokenizer_->piece(id);
  std::string out;
  std::string_view rest = held_;
  while (!rest.empty()) {
    const Utf8Head head = utf8_head(rest);
    if (head.kind == Utf8Head::kIncomplete) break;
    out += head.kind == Utf8Head::kValid ? rest.substr(0, size_t(head.length)) : kReplacement;
    rest.remove_prefix(size_t(head.length));
  }
  held_.erase(0, held_.size() - rest.size());
  return out;
}

std::string StreamDecoder::finish() {
  std::string out = utf8_sanitize(held_);
  held_.clear();
  return out;
}

}  // namespace facet
