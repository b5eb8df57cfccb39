#include "formats/mmproj_name.h"

#include <cctype>
#include <string>

namespace facet {
namespace {

// The last part of a path, in small letters, without .gguf.
std::string name_of(std::string_view path) {
  path.remove_prefix(path.rfind('/') == path.npos ? 0 : path.rfind('/') + 1);
  std::string s(path);
  for (char& c : s) c = char(std::tolower(static_cast<unsigned char>(c)));
  if (s.ends_with(".gguf")) s.erase(s.size() - 5);
  return s;
}

// What a name says beside 'mmproj' and a type: '' or a model's name.
std::string model_in(std::string_view path) {
  std::string s = name_of(path);
  for (const char* word : {"mmproj", "bf16", "f16", "f32", "q8_0", "model"})
    for (size_t at = s.find(word); at != s.npos; at = s.find(word)) s.erase(at, std::string_view(word).size());
  const auto plain = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0; };
  while (!s.empty() && !plain(s.front())) s.erase(s.begin());
  while (!s.empty() && !plain(s.back())) s.pop_back();
  return s;
}

}  // namespace

bool is_mmproj_name(std::string_view path) {
  return name_of(path).find("mmproj") != std::string::npos && (path.ends_with(".gguf") || path.ends_with(".GGUF"));
}

int mmproj_name_rank(std::string_view path, std::string_view model_path) {
  const std::string named = model_in(path);
  return named.empty() ? 1 : name_of(model_path).find(named) != std::string::npos ? 0 : 2;
}

}  // namespace facet
