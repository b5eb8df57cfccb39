#include "tokenizer/tokenizer.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <ctime>
#include <random>

#include "support/sanitized.h"
#include "support/tokenizer_vocab.h"
#include "tokenizer/known_ids.h"
#include "tokenizer/utf8.h"

namespace facet {
namespace {

using test::made_vocab;
using test::naive_merge;
using test::special_type;
using test::tiny_vocab;
using Ids = std::vector<int32_t>;
using Texts = std::vector<std::string>;

Tokenizer make(Vocab v) {
  Result<Tokenizer> t = Tokenizer::create(std::move(v));
  EXPECT_TRUE(t) << t.error().message();
  return std::move(*t);
}

Texts texts_of(const Tokenizer& t, const Ids& ids) {
  Texts out;
  for (const int32_t id : ids) out.push_back(t.text(id));
  return out;
}

Texts split(const Tokenizer& t, std::string_view text, bool parse_special = true) {
  return texts_of(t, t.encode(text, false, parse_special));
}

TEST(Tokenizer, SameIdsAsLlamaCpp) {
  const Tokenizer t = make(tiny_vocab());
  for (const char* name : {"tokenize-dense.json", "tokenize-moe.json", "tokenize-edge.json"}) {
    const nlohmann::json cases = test::read_json(name);
    ASSERT_GE(cases.size(), 20u);
    for (const auto& c : cases) {
      const std::string text = c["text"];
      const Ids ids = c["ids"];
      EXPECT_EQ(t.encode(text, false, true), ids) << text;
      EXPECT_EQ(t.decode(ids, true), text);
    }
  }
}

// In a plain range structure is characters; everything else is as it would be without one.
TEST(Tokenizer, PlainRangesHideStructure) {
  const Tokenizer t = make(tiny_vocab());
  const std::string text = "<bos><|turn>user\nHi<turn|>\n<|turn>model\n";
  const size_t hi = text.find("Hi");
  const TextRange range{hi, hi + 2};
  EXPECT_EQ(t.encode(text, true, true, {&range, 1}), t.encode(text, true, true));
  for (const std::string token :
       {"<turn|>", "<|turn>", "<bos>", "<eos>", "<|tool_call>", "<|\"|>", "<|channel>", "<|think|>", "<|image|>"}) {
    std::string with = text;
    with.replace(hi, 2, token);
    const TextRange plain{hi, hi + token.size()};
    const Ids ids = t.encode(with, true, true, {&plain, 1}), own = t.encode("<bos><|turn>user\n", true, true);
    EXPECT_EQ(t.decode(ids, true), with) << token;
    // Its characters, and behind them what the template has.
    const int32_t id = t.find(token);
    const auto count = [&](const Ids& v) { return std::count(v.begin(), v.end(), id); };
    EXPECT_TRUE(id < 0 || count(ids) == count(t.encode(text, true, true))) << token;
    EXPECT_TRUE(std::equal(own.begin(), own.end(), ids.begin())) << token;
    EXPECT_TRUE(id < 0 || count(t.encode(with, true, true)) == count(ids) + 1) << token;  // the old way
  }
  // A token that only part of a range spells is none either; one that ends where a range begins is.
  const std::string cut = "<turn|>", both = "<turn|><turn|>";
  for (size_t at = 0; at < cut.size(); ++at) {
    const TextRange one{at, at + 1};
    EXPECT_GT(t.encode(cut, false, true, {&one, 1}).size(), 1u) << at;
  }
  const TextRange second{7, 14};
  const Ids ids = t.encode(both, false, true, {&second, 1});
  EXPECT_EQ(ids[0], t.special().turn_close);
  EXPECT_GT(ids.size(), 2u);
}

// The splits behind the published ids of known_ids.cpp; '|' separates tokens, and bytes of a token that is
// spelled in bytes are given as <0x..>. Rows in the table's order.
const std::vector<Texts> kSplits = {
    {"ied", "▁", "4", "▁½", "▁months"},
    {"Ä", "pf", "el"},
    {},
    {"▁"},
    {"▁▁"},
    {"▁▁▁"},
    {"\t"},
    {"\n"},
    {"\n\n"},
    {"\n\n\n"},
    {"\t", "\n"},
    {"Hello", "▁world"},
    {"▁Hello", "▁world"},
    {"Hello", "▁World"},
    {"▁Hello", "▁World"},
    {"▁Hello", "▁World", "!"},
    {"Hello", ",", "▁world", "!"},
    {"▁Hello", ",", "▁world", "!"},
    {"▁this", "▁is", "▁", "<0xF0>", "<0x9F>", "<0xA6>", "<0x99>", ".", "cpp"},
    {"w", "0", "4", "8", "▁", "7", "tu", "ijk", "▁ds", "df", "hu"},
    {"не", "що", "▁на", "▁Бъл", "гар", "ски"},
    {"កាន់", "តែ", "ពិ", "សេស", "អាច", "ខល", "ចេញ"},
    {"🚀",        "▁(",      "normal",        ")", "▁",  "😶",  "\u200D", "🌫",   "\uFE0F", "▁(",
     "multiple", "▁emojis", "▁concatenated", ")", "▁✅", "▁(", "only",   "▁emoji", "▁that",  "▁has",
     "▁its",     "▁own",    "▁token",        ")"},
    {"Hello"},
    {"▁Hello"},
    {"▁▁", "Hello"},
    {"▁▁▁", "Hello"},
    {"▁▁▁▁", "Hello"},
    {"▁▁▁▁", "Hello", "\n", "▁▁▁▁", "Hello"},
    {"▁("},
    {"\n", "▁="},
    {"'", "▁era"},
    {"Hello", ",",     "▁y",   "'", "all", "!", "▁How", "▁are", "▁you", "▁😁", "▁?", "我想",
     "在",    "apple", "工作", "1", "3",   "1", "4",    "1",    "5",    "1",  "天", "～"},
    {"!!!!!!"},
    {"3"},
    {"3", "3"},
    {"3", "3", "3"},
    {"3", "3", "3", "3"},
    {"3", "3", "3", "3", "3"},
    {"3", "3", "3", "3", "3", "3", "3", "3", "3"},
    {"C", "ửa", "▁Việt"},
    {"▁disc", "ards"},
    {"\n", "▁",  "\n\n", "▁",  "\n\n\n", "▁",  "\t",   "▁",  "\t\t",  "▁",
     "\t", "\n", "▁▁",   "\n", "▁▁▁",    "\n", "▁▁▁▁", "\n", "▁▁▁▁▁", "\n"},
    {"<|turn>", "user", "\n"},
    {"<turn|>", "\n"},
    {"<|channel>", "thought", "\n", "<channel|>"},
};

Vocab known_vocab() {
  std::vector<std::string> words;
  for (const Texts& row : kSplits)
    for (const std::string& text : row)
      if (!text.starts_with("<")) words.push_back(text);
  std::stable_sort(words.begin(), words.end(), [](const std::string& a, const std::string& b) {
    return test::code_points(a).size() < test::code_points(b).size();
  });
  return made_vocab(words);
}

TEST(Tokenizer, SplitsOfThePublishedVocabulary) {
  const Tokenizer t = make(known_vocab());
  const auto known = gemma4_known_encodings();
  ASSERT_EQ(known.size(), kSplits.size());
  std::map<int32_t, std::string> text_of_published;
  for (size_t i = 0; i < known.size(); ++i) {
    EXPECT_EQ(split(t, known[i].text), kSplits[i]) << known[i].text;
    EXPECT_EQ(t.decode(t.encode(known[i].text, false, true), true), known[i].text);
    // The table of splits and the table of ids are of the same tokens.
    ASSERT_EQ(known[i].ids.size(), kSplits[i].size()) << known[i].text;
    for (size_t k = 0; k < kSplits[i].size(); ++k) {
      const auto [it, fresh] = text_of_published.emplace(known[i].ids[k], kSplits[i][k]);
      EXPECT_EQ(it->second, kSplits[i][k]) << "id " << it->first;
      if (kSplits[i][k].starts_with("<0x")) {
        EXPECT_EQ(known[i].ids[k], 238 + std::stoi(kSplits[i][k].substr(3, 2), nullptr, 16));
      }
    }
  }
}

TEST(Tokenizer, NewlineRunIsOneTokenEvenWithoutMerges) {
  Vocab v = made_vocab({"a", "\n"});
  v.tokens.push_back("\n\n\n\n");
  v.types.push_back(kNormal);
  const Tokenizer t = make(std::move(v));
  EXPECT_EQ(split(t, "a\n\n\n\na"), (Texts{"a", "\n\n\n\n", "a"}));
  EXPECT_EQ(split(t, "\n\n\n"), (Texts{"\n", "\n", "\n"}));
  EXPECT_EQ(split(t, "\n\n\n\n\n"), (Texts{"\n", "\n", "\n", "\n", "\n"}));
}

TEST(Tokenizer, MergesNeverCrossNewlines) {
  Vocab v = made_vocab({"a", "b", "\n", "a\n", "\nb"});
  const Tokenizer t = make(std::move(v));
  EXPECT_EQ(split(t, "a\nb"), (Texts{"a", "\n", "b"}));
}

TEST(Tokenizer, MergeWhoseLeftSideBeginsWithASpace) {
  Vocab v = made_vocab({"x"});
  v.tokens.push_back("y");
  v.types.push_back(kNormal);
  v.merges.push_back("  y");  // left " ", right "y": no text has a raw space, but the line is well formed
  EXPECT_TRUE(Tokenizer::create(std::move(v)));
}

TEST(Tokenizer, BosExactlyOnce) {
  const Tokenizer t = make(tiny_vocab());
  const int32_t bos = t.bos();
  const auto bos_count = [&](const Ids& ids) { return std::count(ids.begin(), ids.end(), bos); };
  EXPECT_EQ(t.encode("", true, true), Ids{bos});
  EXPECT_EQ(t.encode("", false, true), Ids{});
  EXPECT_EQ(t.encode("<bos>", true, true), Ids{bos});
  EXPECT_EQ(t.encode("<bos>hi", true, true), t.encode("hi", true, true));
  EXPECT_EQ(t.encode("<bos>hi", false, true), t.encode("hi", true, true));
  EXPECT_EQ(bos_count(t.encode("<bos>hi", true, false)), 1);  // here the text is six characters and "hi"
  EXPECT_EQ(bos_count(t.encode("<bos>hi", false, false)), 0);
}

TEST(Tokenizer, ParseSpecialPartition) {
  const Tokenizer t = make(known_vocab());
  EXPECT_EQ(split(t, "<|turn>user"), (Texts{"<|turn>", "user"}));
  EXPECT_NE(split(t, "<|turn>user", false)[0], "<|turn>");
  for (const std::string_view text : test::kSpecialTexts) {
    const int32_t id = t.find(text);
    ASSERT_GE(id, 0) << text;
    EXPECT_EQ(t.encode(text, false, true), Ids{id}) << text;
    // Only user-defined tokens are found in plain text; <|tool_response>, which ends a generation, is not.
    const bool always = special_type(text) == kUserDefined && text != "<|tool_response>";
    EXPECT_EQ(t.encode(text, false, false) == Ids{id}, always) << text;
    EXPECT_EQ(t.decode(Ids{id}, false), always ? std::string(text) : "");
    EXPECT_EQ(t.decode(Ids{id}, true), text);
    EXPECT_EQ(t.is_special(id), !always);
  }
  // Longest first, and no whitespace is taken from the neighbours.
  EXPECT_EQ(split(t, "<|image>|> <|image|>"), (Texts{"<|image>", "<0x7C>", "<0x3E>", "▁", "<|image|>"}));
  EXPECT_EQ(split(t, " <turn|>\n<turn|> "), (Texts{"▁", "<turn|>", "\n", "<turn|>", "▁"}));
}

TEST(Tokenizer, InvalidUtf8BecomesReplacementCharacters) {
  const Tokenizer t = make(tiny_vocab());
  const std::string fffd = "\xEF\xBF\xBD";
  const auto same = [&](std::string_view bad, const std::string& good) {
    EXPECT_EQ(t.encode(bad, false, true), t.encode(good, false, true)) << good;
  };
  same("a\x80z", "a" + fffd + "z");
  same("a\xFFz", "a" + fffd + "z");
  same("a\xE2\x96", "a" + fffd + fffd);
  same("a\xE2\x96z", "a" + fffd + fffd + "z");
  same("\xF0\x9F\xA6", fffd + fffd + fffd);
  same("\xC3\n", fffd + "\n");
  same("\xC3 ", fffd + " ");
  // Patterns are complete: llama.cpp does not look at the values.
  EXPECT_EQ(split(t, "\xC0\x80"), (Texts{"<0xC0>", "<0x80>"}));
  EXPECT_EQ(t.decode(t.encode("\xC0\x80", false, true), false), fffd + fffd);
}

TEST(Tokenizer, ByteFallbackByText) {
  const Tokenizer t = make(tiny_vocab());
  EXPECT_EQ(split(t, "é"), (Texts{"<0xC3>", "<0xA9>"}));
  EXPECT_EQ(t.decode(t.encode("é🦙", false, false), false), "é🦙");
}

std::string random_text(std::mt19937& rng, const Texts& alphabet, int n) {
  std::string s;
  for (int i = 0; i < n; ++i) s += alphabet[rng() % alphabet.size()];
  return s;
}

Texts naive_split(const Tokenizer& t, const std::string& line) {
  std::string normal;
  for (const char c : line) normal += c == ' ' ? std::string("▁") : std::string(1, c);
  Texts out;
  for (const std::string& s : naive_merge(test::code_points(normal), test::ranks_of(t.vocab().merges))) {
    if (t.find(s) >= 0) {
      out.push_back(s);
      continue;
    }
    for (const char byte : s) {
      char text[8];
      std::snprintf(text, sizeof text, "<0x%02X>", uint8_t(byte));
      out.push_back(text);
    }
  }
  return out;
}

TEST(Tokenizer, HeapMergesAsTheNaiveLoop) {
  std::mt19937 rng(7);
  const Tokenizer tiny = make(tiny_vocab());
  // Many ties and chains: runs of few symbols, and joined texts that are not tokens.
  Vocab v = made_vocab({"a", "b", "aa", "ab", "aba", "bb", "aaaa", "baab", "▁a"});
  v.merges.push_back("b ▁a");
  v.merges.push_back("aaaa b");
  const Tokenizer made = make(std::move(v));
  for (int i = 0; i < 400; ++i) {
    const std::string s = random_text(rng, {"a", "b", "a", " "}, 1 + int(rng() % 60));
    ASSERT_EQ(split(made, s), naive_split(made, s)) << s;
  }
  for (int i = 0; i < 60; ++i) {
    const std::string s = random_text(rng, {"the", " ", "self", "in", "e", "er", "re", " ", "s", "t", "é", "0"}, 40);
    ASSERT_EQ(split(tiny, s), naive_split(tiny, s)) << s;
  }
}

TEST(Tokenizer, NaiveComparisonHasTeeth) {
  // The same vocabulary with two ranks exchanged splits differently, so the comparison above can fail.
  Vocab v = made_vocab({"a", "b", "ab", "ba"});
  const Tokenizer good = make(v);
  std::swap(v.merges[0], v.merges[1]);
  const Tokenizer bad = make(v);
  EXPECT_EQ(split(good, "aba"), (Texts{"ab", "a"}));
  EXPECT_EQ(split(bad, "aba"), (Texts{"a", "ba"}));
}

TEST(Tokenizer, MegabyteLineInUnderASecond) {
  if (test::kSanitized) GTEST_SKIP() << "times mean nothing under sanitizers";
  const Tokenizer t = make(tiny_vocab());
  std::mt19937 rng(3);
  for (const Texts& alphabet : {Texts{" "}, Texts{"e", " "}, Texts{"the ", "self.", "in", "<", "é", "0"}}) {
    std::string s;
    while (s.size() < 1000000) s += alphabet[rng() % alphabet.size()];
    const std::clock_t start = std::clock();  // of this process, whatever else runs
    const Ids ids = t.encode(s, true, true);
    EXPECT_LT(double(std::clock() - start) / CLOCKS_PER_SEC, 1.0);
    EXPECT_EQ(t.decode(ids, false), s);
  }
}

TEST(Tokenizer, StreamedPiecesAreTheWhole) {
  const Tokenizer t = make(tiny_vocab());
  std::mt19937 rng(11);
  for (int round = 0; round < 300; ++round) {
    Ids ids;
    for (int i = 0; i < 40; ++i) {
      // Half of the ids are bytes that can form sequences.
      const int byte = std::array{0xE2, 0x96, 0x81, 0xF0, 0x9F, 0xA6, 0x99, 0xC3, 0xA9, 0xED, 0x41}[rng() % 11];
      ids.push_back(rng() % 2 ? int32_t(rng() % uint32_t(t.size())) : t.find(fmt::format("<0x{:02X}>", byte)));
    }
    for (const bool show : {false, true}) {
      StreamDecoder stream(t, show);
      std::string joined, raw;
      for (const int32_t id : ids) {
        const std::string piece = stream.push(id);
        EXPECT_EQ(utf8_sanitize(piece), piece);  // whole sequences only
        joined += piece;
        if (show || !t.is_special(id)) raw += t.piece(id);
      }
      joined += stream.finish();
      EXPECT_EQ(joined, t.decode(ids, show));
      EXPECT_EQ(joined, utf8_sanitize(raw));
    }
  }
}

TEST(Tokenizer, StreamHoldsBackUntilDecided) {
  const Tokenizer t = make(tiny_vocab());
  StreamDecoder stream(t);
  const auto push = [&](int byte) { return stream.push(t.find(fmt::format("<0x{:02X}>", byte))); };
  EXPECT_EQ(push(0xF0), "");
  EXPECT_EQ(push(0x9F), "");
  EXPECT_EQ(push(0xA6), "");
  EXPECT_EQ(push(0x99), "🦙");
  EXPECT_EQ(push(0xE2), "");
  EXPECT_EQ(push(0x41), "\uFFFDA");
  EXPECT_EQ(push(0xFF), "\uFFFD");
  EXPECT_EQ(push(0xED), "");
  EXPECT_EQ(push(0xA0), "\uFFFD\uFFFD");  // would be a surrogate
  EXPECT_EQ(push(0xC3), "");
  EXPECT_EQ(stream.finish(), "\uFFFD");
  EXPECT_EQ(stream.finish(), "");
}

TEST(Tokenizer, EndOfGenerationByText) {
  Vocab v = tiny_vocab();
  v.tokens[300] = "</s>";
  v.eos_ids = {106, 50};  // bytes in this vocabulary
  const Tokenizer t = make(std::move(v));
  EXPECT_EQ(texts_of(t, t.eog()), (Texts{"<eos>", "<turn|>", "<|tool_response>"}));
  EXPECT_TRUE(t.is_eog(t.find("<turn|>")));
  EXPECT_FALSE(t.is_eog(t.find("</s>")));
  EXPECT_FALSE(t.is_eog(106));
  EXPECT_EQ(t.decode(Ids{t.find("</s>")}, false), "</s>");
}

// A fine-tune's own end of a turn. Bytes are none, as above.
TEST(Tokenizer, ADeclaredEndIsHonoured) {
  Vocab v = made_vocab({"a", "<|im_end|>"});
  const int32_t id = int32_t(v.tokens.size()) - 1;
  v.eos_ids = {1, 30, id, id};
  for (const int type : {int(kNormal), int(kControl), int(kUserDefined)}) {
    v.types[size_t(id)] = type;
    const Tokenizer t = make(v);
    EXPECT_EQ(texts_of(t, t.eog()), (Texts{"<eos>", "<turn|>", "<|tool_response>", "<|im_end|>"}));
    EXPECT_EQ(t.decode(Ids{t.find("a"), id}, false), "a");
    ASSERT_EQ(t.vocab().notes.size(), 1u);
    EXPECT_NE(t.vocab().notes[0].find("<|im_end|>"), std::string::npos);
  }
}

// Ollama's converter makes all added tokens control tokens, and bytes normal ones.
TEST(Tokenizer, MarkersAreWhatTheyAreByText) {
  const Vocab right = made_vocab({"a"});
  const Tokenizer expected = make(right);
  for (const int type : {int(kControl), int(kUserDefined), int(kNormal)}) {
    Vocab v = right;
    for (size_t i = 0; i < v.tokens.size(); ++i)
      if (special_type(v.tokens[i]) == kUserDefined || v.tokens[i].find("turn") != std::string::npos ||
          v.tokens[i] == "<|think|>" || v.types[i] == kByte)
        v.types[i] = v.types[i] == kByte ? int(kNormal) : type;
    const Tokenizer t = make(std::move(v));
    const std::string text =
        "<|turn>a<|channel>a<channel|><|tool_call>a<|\"|><tool_call|><tool_response|><|think|><turn|>\xFF";
    for (const bool special : {false, true})
      EXPECT_EQ(t.encode(text, true, special), expected.encode(text, true, special));
    const Ids ids = expected.encode(text, true, true);
    EXPECT_EQ(t.decode(ids, false), expected.decode(ids, false));
    EXPECT_NE(t.decode(ids, false).find("<|channel>a<channel|><|tool_call>a<|\"|><tool_call|>"), std::string::npos);
    EXPECT_TRUE(t.vocab().notes.empty());
  }
}

TEST(Tokenizer, ControlTokensOfTypeNormalAreCorrected) {
  Vocab v = tiny_vocab();
  v.types[1] = kNormal;  // <eos> in early files
  const Tokenizer t = make(std::move(v));
  EXPECT_EQ(t.decode(Ids{1}, false), "");
  EXPECT_EQ(t.encode("a<eos>", false, true).back(), 1);
  ASSERT_EQ(t.vocab().notes.size(), 1u);
  EXPECT_NE(t.vocab().notes[0].find("<eos>"), std::string::npos);
}

TEST(Tokenizer, SuppressedTokens) {
  Vocab v = made_vocab({"a"});
  const int32_t turn_close = int32_t(std::find(v.tokens.begin(), v.tokens.end(), "<turn|>") - v.tokens.begin());
  v.suppress = {0, 0, turn_close};
  const Tokenizer t = make(std::move(v));
  Ids expected = {0};
  for (const char* text : {"<|image>", "<|audio>", "<|image|>", "<|audio|>", "<image|>", "<audio|>", "<|video|>"})
    expected.push_back(t.find(text));
  std::sort(expected.begin(), expected.end());
  EXPECT_EQ(t.suppressed(), expected);  // never a token that ends a generation
  EXPECT_TRUE(make(tiny_vocab()).suppressed().empty());
}

TEST(Tokenizer, ErrorsNameWhatIsMissing) {
  const auto error_without = [](std::string_view text) {
    Vocab v = tiny_vocab();
    for (std::string& t : v.tokens)
      if (t == text) t = "gone";
    const Result<Tokenizer> t = Tokenizer::create(std::move(v));
    return t ? std::string() : t.error().message();
  };
  for (const char* text : {"<bos>", "<eos>", "<|turn>", "<turn|>", "<|channel>", "<0x00>", "<0xFF>", "<|\"|>"})
    EXPECT_NE(error_without(text).find(text), std::string::npos) << text;
  EXPECT_EQ(error_without("<mask>"), "");
  EXPECT_FALSE(Tokenizer::create(Vocab{}));
  Vocab v = tiny_vocab();
  v.merges[5] = "nospace";
  const Result<Tokenizer> bad = Tokenizer::create(v);
  ASSERT_FALSE(bad);
  EXPECT_NE(bad.error().message().find("merges[5]"), std::string::npos);
  v = tiny_vocab();
  v.types.pop_back();
  EXPECT_FALSE(Tokenizer::create(v));
  v = tiny_vocab();
  v.types[600] = kByte;
  EXPECT_FALSE(Tokenizer::create(v));
}

TEST(Tokenizer, MovedTokenizerStillWorks) {
  Tokenizer a = make(tiny_vocab());
  const Ids ids = a.encode("Hello world", true, true);
  const Tokenizer b = std::move(a);
  EXPECT_EQ(b.encode("Hello world", true, true), ids);
}

TEST(Tokenizer, RandomBytesRoundTripWhenValid) {
  const Tokenizer t = make(tiny_vocab());
  std::mt19937 rng(5);
  for (int i = 0; i < 300; ++i) {
    std::string s;
    for (int k = 0; k < 50; ++k) s += char(rng() % 4 ? rng() % 128 : rng() % 256);
    const std::string decoded = t.decode(t.encode(s, false, false), true);
    if (utf8_sanitize(s) == s) {
      EXPECT_EQ(decoded, s);
    }
    EXPECT_EQ(utf8_sanitize(decoded), decoded);
  }
}

}  // namespace
}  // namespace facet
