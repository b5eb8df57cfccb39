#pragma once
#include <cstdio>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/vocab.h"

// Vocabularies and the obvious, slow tokenizer that tests compare with.
namespace facet::test {

#ifdef FACET_TEST_DATA
inline nlohmann::json read_json(const std::string& name) {
  std::ifstream in(std::string(FACET_TEST_DATA) + "/tokenizer/" + name);
  return nlohmann::json::parse(in);
}

inline Vocab tiny_vocab() {
  const nlohmann::json j = read_json("vocab.json");
  Vocab v;
  v.tokens = j["tokens"].get<std::vector<std::string>>();
  v.types = j["types"].get<std::vector<int>>();
  v.merges = j["merges"].get<std::vector<std::string>>();
  v.where = "vocab.json";
  return v;
}
#endif

inline std::vector<std::string> code_points(std::string_view s) {
  std::vector<std::string> out;
  for (const char c : s) {
    if ((uint8_t(c) & 0xC0) != 0x80) out.emplace_back();
    out.back() += c;
  }
  return out;
}

using Ranks = std::map<std::pair<std::string, std::string>, size_t>;

inline Ranks ranks_of(const std::vector<std::string>& merges) {
  Ranks ranks;
  for (size_t r = 0; r < merges.size(); ++r) {
    const size_t at = merges[r].find(' ', 1);
    ranks.emplace(std::pair(merges[r].substr(0, at), merges[r].substr(at + 1)), r);
  }
  return ranks;
}

// One pass over all pairs for every merge: quadratic, and nothing to get wrong.
inline std::vector<std::string> naive_merge(std::vector<std::string> symbols, const Ranks& ranks) {
  while (true) {
    size_t best = ranks.size(), at = 0;
    for (size_t i = 0; i + 1 < symbols.size(); ++i) {
      const auto it = ranks.find({symbols[i], symbols[i + 1]});
      if (it != ranks.end() && (best == ranks.size() || it->second < best)) best = it->second, at = i;
    }
    if (best == ranks.size()) return symbols;
    symbols[at] += symbols[at + 1];
    symbols.erase(symbols.begin() + ptrdiff_t(at) + 1);
  }
}

inline constexpr std::string_view kSpecialTexts[] = {
    "<pad>",        "<eos>",        "<bos>",    "<unk>",     "<mask>",           "<|tool>",          "<tool|>",
    "<|tool_call>", "<tool_call|>", "<|\"|>",   "<|think|>", "<|tool_response>", "<tool_response|>", "<|channel>",
    "<channel|>",   "<|turn>",      "<turn|>",  "<|image>",  "<|audio>",         "<|image|>",        "<|audio|>",
    "<image|>",     "<audio|>",     "<|video|>"};

inline int special_type(std::string_view text) {
  if (text == "<unk>") return kUnknown;
  for (const std::string_view user :
       {"<|tool_call>", "<tool_call|>", "<|tool_response>", "<tool_response|>", "<|\"|>", "<|channel>", "<channel|>"})
    if (text == user) return kUserDefined;
  return kControl;
}

// All 24 special tokens, the 256 bytes, and `words` ('▁' for spaces), each of which is one token: the merges
// are made so that a word given earlier is preferred.
inline Vocab made_vocab(const std::vector<std::string>& words) {
  Vocab v;
  v.where = "made";
  std::map<std::string, bool> have;
  const auto add = [&](const std::string& text, int type) {
    if (have[text]) return;
    have[text] = true;
    v.tokens.push_back(text);
    v.types.push_back(type);
  };
  for (const std::string_view s : kSpecialTexts) add(std::string(s), special_type(s));
  for (int b = 0; b < 256; ++b) {
    char text[8];
    std::snprintf(text, sizeof text, "<0x%02X>", b);
    add(text, kByte);
  }
  for (const std::string& word : words) {
    // One merge at a time: with "! !" added, "!!!!!!" is three pairs and not a pair and four.
    for (std::vector<std::string> parts; (parts = naive_merge(code_points(word), ranks_of(v.merges))).size() > 1;)
      v.merges.push_back(parts[0] + " " + parts[1]);
    add(word, kNormal);
  }
  return v;
}

}  // namespace facet::test
