#include "app/suggest.h"

#include <algorithm>

namespace facet {
namespace {

constexpr size_t kLongest = 64;

// Damerau and Levenshtein's distance, of texts in which no part is changed twice.
size_t distance(std::string_view a, std::string_view b) {
  std::vector<size_t> before(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) last[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) row[j] = std::min(row[j], before[j - 2] + 1);
    }
    before.swap(last), last.swap(row);
  }
  return last[b.size()];
}

}  // namespace

std::string nearest_name(std::string_view word, const std::vector<std::string>& names) {
  if (word.size() > kLongest) return "";
  std::string best;
  size_t least = std::string::npos;
  for (const std::string& name : names) {
    if (name.size() > kLongest) continue;
    // Dashes before a name are no letters of it.
    const size_t letters = name.size() - std::min(name.find_first_not_of('-'), name.size());
    const size_t d = distance(word, name), most = letters < 3 ? 0 : letters < 6 ? 1 : letters < 10 ? 2 : 3;
    if (d <= most && d < least) best = name, least = d;
  }
  return best;
}

std::string did_you_mean(std::string_view word, const std::vector<std::string>& names) {
  const std::string name = nearest_name(word, names);
  return name.empty() ? "" : " (did you mean '" + name + "'?)";
}

}  // namespace facet
