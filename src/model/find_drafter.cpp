#include "model/find_drafter.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <filesystem>
#include <optional>
#include <tuple>

#include "model/dflash_config.h"
#include "model/drafter_file.h"
#include "model/eagle3_config.h"
#include "model/gemma4_config.h"
#include "model/mtp_config.h"

namespace facet {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMostFiles = 256;  // looked at in one search; a folder of models has fewer
constexpr size_t kMostReasons = 4;

std::string lower(std::string s) {
  for (char& c : s) c = char(std::tolower(static_cast<unsigned char>(c)));
  return s;
}
template <class List>
bool contains(const List& list, const std::string& s) {
  return std::find(list.begin(), list.end(), s) != list.end();
}
bool digits(const std::string& s) {
  return !s.empty() && std::all_of(s.begin(), s.end(), [](unsigned char c) { return std::isdigit(c) != 0; });
}

// What a name says of the kind; both false: nothing.
struct Hint {
  bool dflash = false, mtp = false, eagle3 = false, drafter = false;
  bool any() const { return dflash || mtp || eagle3 || drafter; }
  bool may_be(const std::string& kind) const {
    const bool is = kind == "dflash" ? dflash : kind == "mtp" ? mtp : eagle3;
    return is || !(dflash || mtp || eagle3);
  }
};
Hint hint_of(const std::string& name) {
  const std::string s = lower(name);
  auto says = [&](const char* word) { return s.find(word) != s.npos; };
  return {.dflash = says("dflash") || says("dspark"),
          .mtp = says("mtp") || says("assistant"),
          .eagle3 = says("eagle3"),
          .drafter = says("draft")};
}

struct Candidate {
  std::string path;
  int rank = 0;  // 0: named for the model, 1: for none, 2: for another
  bool is_gguf = true;
  uint64_t bytes = 0;
  auto order() const { return std::tuple(rank, !is_gguf, bytes, path); }
};

// A folder of safetensors with its configuration, as it is downloaded.
bool is_weights_folder(const fs::path& p) {
  std::error_code ec;
  return fs::exists(p / "config.json", ec) &&
         (fs::exists(p / "model.safetensors", ec) || fs::exists(p / "model.safetensors.index.json", ec));
}
uint64_t bytes_in(const fs::path& folder) {
  uint64_t n = 0;
  std::error_code ec;
  for (const fs::directory_entry& f : fs::directory_iterator(folder, ec))
    if (f.path().extension() == ".safetensors" && f.is_regular_file(ec)) n += f.file_size(ec);
  return n;
}

class Search {
 public:
  Search(const std::string& model, std::string kind, bool any_name)
      : kind_(std::move(kind)), any_name_(any_name), words_(name_words(model)) {
    std::error_code ec;
    for (const std::string& part : gguf_parts(model)) parts_.push_back(fs::weakly_canonical(part, ec).string());
  }

  // Files of the folder that are named for drafters, or all of them.
  void look_in(const fs::path& folder, bool all, const std::string& folder_name) {
    std::error_code ec;
    if (all && is_weights_folder(folder)) add(folder, folder_name, false, bytes_in(folder));
    fs::directory_iterator it(folder.empty() ? fs::path(".") : folder, ec);
    for (const fs::directory_iterator end; !ec && it != end && found_.size() < kMostFiles; it.increment(ec)) {
      const fs::path& path = it->path();
      const std::string name = path.filename().string(), ext = lower(path.extension().string());
      const Hint hint = hint_of(name);
      std::error_code not_there;
      if (it->is_directory(not_there)) {
        if (hint.any() && hint.may_be(kind_) && !nested_) {
          nested_ = true;
          look_in(path, true, name);
          nested_ = false;
        }
      } else if ((all || hint.any()) && hint.may_be(kind_) && it->is_regular_file(not_there) &&
                 (ext == ".gguf" || (ext == ".safetensors" && !all)) && is_first_part(path) && !is_model(path)) {
        add(path, name, ext == ".gguf", it->file_size(not_there));
      }
    }
  }

  // The first in order that fits.
  DrafterSearch choose(const std::string& model) {
    DrafterSearch s;
    if (found_.empty()) return s;
    const auto file = open_gemma4(model);
    if (!file) return s;  // whoever opens it says why
    const auto target = gemma4_config(*file);
    if (!target) return s;
    std::sort(found_.begin(), found_.end(),
              [](const Candidate& a, const Candidate& b) { return a.order() < b.order(); });
    int chosen = -1;  // its rank
    for (const Candidate& c : found_) {
      if (chosen >= 0) {
        if (c.rank == chosen) s.also.push_back(c.path);
        continue;
      }
      const std::optional<Error> why = misfit(c.path, *target);
      if (!why)
        s.path = c.path, chosen = c.rank;
      else if ((c.rank < 2 || any_name_) && !why->what.empty() && s.unfit.size() < kMostReasons)
        s.unfit.push_back(*why);
    }
    return s;
  }

 private:
  void add(const fs::path& path, const std::string& name, bool is_gguf, uint64_t bytes) {
    const std::vector<std::string> words = name_words(name);
    found_.push_back({path.string(), words.empty() ? 1 : words == words_ ? 0 : 2, is_gguf, bytes});
  }
  static bool is_first_part(const fs::path& path) {
    const auto parts = gguf_parts(path.string());
    return parts.front() == path.string();
  }
  bool is_model(const fs::path& path) const {
    std::error_code ec;
    return contains(parts_, fs::weakly_canonical(path, ec).string());
  }
  // Why the file is no drafter for the target; without a text if it is one of the other kind.
  std::optional<Error> misfit(const std::string& path, const ModelCfg& target) const {
    const auto f = DrafterFile::open(path);
    if (!f) return f.error();
    if (kind_ != drafter_kind_name(f->kind())) return Error{path, "", ""};
    if (f->kind() == DrafterKind::kDflash) {
      const auto c = dflash_config(*f, target);
      return c ? std::nullopt : std::optional(c.error());
    }
    if (f->kind() == DrafterKind::kEagle3) {
      const auto c = eagle3_config(*f, target);
      return c ? std::nullopt : std::optional(c.error());
    }
    const auto c = mtp_config(*f, target);
    return c ? std::nullopt : std::optional(c.error());
  }

  std::string kind_;
  bool any_name_;
  std::vector<std::string> words_, parts_;
  std::vector<Candidate> found_;
  bool nested_ = false;
};

}  // namespace

std::vector<std::string> name_words(const std::string& file_name) {
  static constexpr std::array<const char*, 14> kNoise = {"mtp",       "dflash", "dflash2",     "dspark",   "eagle3",
                                                         "assistant", "draft",  "drafter",     "drafters", "nextn",
                                                         "ud",        "gguf",   "safetensors", "imatrix"};
  static constexpr std::array<const char*, 6> kFloats = {"bf16", "f16", "fp16", "f32", "fp32", "fp8"};
  static constexpr std::array<const char*, 9> kSizes = {"k", "xxs", "xs", "s", "m", "l", "xl", "xxl", "nl"};
  std::vector<std::string> words, kept;
  for (const char c : lower(fs::path(file_name).filename().string())) {
    const bool letter = std::isalnum(static_cast<unsigned char>(c)) != 0 || static_cast<unsigned char>(c) >= 0x80;
    if (!letter || words.empty()) words.emplace_back();
    if (letter) words.back() += c;
  }
  bool quantised = false;  // behind "q4", where "k", "xl" and "0" belong to it
  for (size_t i = 0; i < words.size(); ++i) {
    const std::string& w = words[i];
    if (w.empty()) continue;
    if (digits(w) && w.size() == 5 && i + 2 < words.size() && words[i + 1] == "of") {  // a part of a split file
      i += 2;
      continue;
    }
    const size_t at = w.starts_with("iq") || w.starts_with("tq") ? 2 : w.starts_with("q") ? 1 : 0;
    if (at > 0 && digits(w.substr(at)) && w.size() <= at + 1) {
      quantised = true;
      continue;
    }
    if (quantised && (contains(kSizes, w) || w == "0" || w == "1")) continue;
    quantised = false;
    if (!contains(kNoise, w) && !contains(kFloats, w)) kept.push_back(w);
  }
  return kept;
}

DrafterSearch find_drafter_beside(const std::string& model, const std::string& kind) {
  Search s(model, kind, /*any_name=*/false);
  s.look_in(fs::path(model).parent_path(), false, "");
  return s.choose(model);
}

DrafterSearch find_drafter_in(const std::string& folder, const std::string& model, const std::string& kind) {
  Search s(model, kind, /*any_name=*/true);
  s.look_in(folder, true, fs::path(folder).filename().string());
  return s.choose(model);
}

}  // namespace facet
