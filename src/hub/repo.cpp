#include "hub/repo.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <iterator>
#include <map>
#include <set>
#include <tuple>

#include "base/print.h"
#include "formats/gguf.h"
#include "formats/mmproj_name.h"
#include "tokenizer/json.h"

namespace facet {
namespace {

constexpr size_t kMaxParts = 500;  // of a split file
constexpr const char* kDefaultQuant = "Q4_K_M";

std::string lower(std::string_view s) {
  std::string t(s);
  for (char& c : t) c = char(std::tolower(static_cast<unsigned char>(c)));
  return t;
}
std::string shown(std::string_view s) { return on_one_line(s.substr(0, 200)); }
bool all_of(std::string_view s, auto is) { return !s.empty() && std::all_of(s.begin(), s.end(), is); }
bool is_hex(std::string_view s, size_t n) {
  return s.size() == n && all_of(s, [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}
bool is_name(std::string_view s, size_t most) {
  return s.size() <= most &&
         all_of(s, [](unsigned char c) { return std::isalnum(c) || c == '.' || c == '_' || c == '-' || c == '+'; }) &&
         s[0] != '.' && s[0] != '-';
}

bool is_quant(std::string_view word) {
  std::string s = lower(word);
  for (const char* begin : {"bf16", "f16", "f32", "fp16", "fp8", "mxfp4", "nvfp4"})
    if (s.starts_with(begin)) return true;
  if (s.starts_with("i") || s.starts_with("t")) s.erase(0, 1);
  return s.size() >= 2 && s[0] == 'q' && std::isdigit(static_cast<unsigned char>(s[1])) &&
         all_of(s, [](unsigned char c) { return c == '_' || std::isalnum(c); });
}

// Projectors for pictures, and statistics of quantisation.
bool is_no_weights(std::string_view path) {
  const std::string s = lower(path);
  return s.find("mmproj") != s.npos || s.find("imatrix") != s.npos;
}
bool is_drafter_name(std::string_view path) {
  const std::string s = lower(path);
  for (const char* word : {"mtp", "dflash", "dspark", "assistant", "draft", "nextn", "eagle"})
    if (s.find(word) != s.npos) return true;
  return false;
}

// "-00001-of-00003.gguf": the part and the count; zeros for any other name.
std::pair<size_t, size_t> part_of(std::string_view path) {
  constexpr size_t kTail = sizeof("-00001-of-00001.gguf") - 1;
  if (path.size() <= kTail) return {0, 0};
  const std::string_view t = path.substr(path.size() - kTail);
  const auto digit = [](unsigned char c) { return std::isdigit(c) != 0; };
  if (t[0] != '-' || t.substr(6, 4) != "-of-" || !all_of(t.substr(1, 5), digit) || !all_of(t.substr(10, 5), digit))
    return {0, 0};
  return {size_t(std::stoi(std::string(t.substr(1, 5)))), size_t(std::stoi(std::string(t.substr(10, 5))))};
}

using ByPath = std::map<std::string, const RemoteFile*>;

// All parts of the file, in order.
Result<HubChoice> whole(const ByPath& files, const RemoteFile& first, const HubName& name) {
  const auto [part, count] = part_of(first.path);
  if (count > kMaxParts)
    return Error{name.repo, fmt::format("expected at most {} parts of a file, found {}", kMaxParts, shown(first.path)),
                 ""};
  HubChoice c;
  for (const std::string& path : gguf_parts(first.path)) {
    const auto at = files.find(path);
    if (at == files.end())
      return Error{name.repo, fmt::format("expected all {} parts, found no {}", count, shown(path)),
                   "the upload is not complete"};
    if (auto ok = check_remote_path(path); !ok) return Error{name.repo, ok.error().what, ok.error().hint};
    c.files.push_back(*at->second);
  }
  return c;
}

std::string names_of(const std::vector<const RemoteFile*>& files) {
  constexpr size_t kMost = 40;
  std::vector<std::string> names;
  std::set<std::string> seen;
  for (const RemoteFile* f : files) {
    std::string q = quant_of(f->path);
    if (q.empty()) q = shown(f->path);
    if (seen.insert(q).second && names.size() < kMost) names.push_back(q);
  }
  return names.empty() ? "none" : fmt::format("{}", fmt::join(names, ", "));
}

// A drafter as it is trained: safetensors and their configuration at the top of the repository.
Result<HubChoice> weights(const std::vector<RemoteFile>& files, const HubName& name) {
  HubChoice c;
  bool config = false;
  size_t n = 0;
  for (const RemoteFile& f : files) {
    if (f.path.find('/') != f.path.npos) continue;
    const bool is_weights = f.path.ends_with(".safetensors");
    if (!is_weights && f.path != "config.json" && f.path != "model.safetensors.index.json") continue;
    if (auto ok = check_remote_path(f.path); !ok) return Error{name.repo, ok.error().what, ok.error().hint};
    config |= f.path == "config.json";
    n += is_weights;
    c.files.insert(is_weights && n == 1 ? c.files.begin() : c.files.end(), f);
  }
  if (n == 0 || !config || n > kMaxParts)
    return Error{name.repo, "expected GGUF files, or safetensors with config.json, found neither", "check the name"};
  c.folder = n > 1;
  return c;
}

}  // namespace

std::string quant_of(std::string_view path) {
  if (path.ends_with(".gguf")) path.remove_suffix(5);
  path.remove_prefix(path.rfind('/') == path.npos ? 0 : path.rfind('/') + 1);
  std::string found, before;
  while (!path.empty()) {
    const size_t end = std::min(path.find_first_of("-."), path.size());
    const std::string word(path.substr(0, end));
    if (is_quant(word)) found = (lower(before) == "ud" ? "UD-" : "") + word;
    before = word;
    path.remove_prefix(std::min(end + 1, path.size()));
  }
  return found;
}

Result<HubName> parse_hub_name(std::string_view text) {
  const Error bad{shown(text), "expected USER/REPO, USER/REPO:QUANT or USER/REPO/FILE.gguf",
                  "as in ggml-org/gemma-4-E4B-it-GGUF:Q4_K_M"};
  if (text.starts_with("hf:")) text.remove_prefix(3);
  HubName n;
  const size_t slash = text.find('/');
  if (slash == text.npos) return bad;
  const size_t end = std::min(text.find_first_of(":/", slash + 1), text.size());
  const std::string_view user = text.substr(0, slash), repo = text.substr(slash + 1, end - slash - 1);
  if (!is_name(user, 96) || !is_name(repo, 96) || repo.find("..") != repo.npos) return bad;
  n.repo = text.substr(0, end);
  if (end == text.size()) return n;
  const std::string_view rest = text.substr(end + 1);
  if (text[end] == ':') {
    if (!is_name(rest, 64)) return bad;
    n.quant = rest;
  } else {
    n.file = rest;
    if (auto ok = check_remote_path(n.file); !ok) return ok.error();
  }
  return n;
}

Status check_remote_path(const std::string& path) {
  const Error bad{"hub", fmt::format("the name of a file is refused: \"{}\"", shown(path)),
                  "letters, digits and ._-+ are taken, in folders below the repository"};
  if (path.size() > 512) return bad;
  size_t depth = 0;
  for (std::string_view rest = path;; ++depth) {
    const size_t end = rest.find('/');
    if (depth == 8 || !is_name(rest.substr(0, end), 200)) return bad;
    if (end == rest.npos) break;
    rest.remove_prefix(end + 1);
  }
  for (const char* ours : {".part", ".sha256", ".etag"})
    if (path.ends_with(ours)) return bad;
  return path.ends_with("/lock") || path == "lock" ? Status(bad) : Status(Ok{});
}

Status parse_tree(std::string_view json, const std::string& where, std::vector<RemoteFile>& files) {
  auto list = parse_json(json, where);
  if (!list) return list.error();
  const auto bad = [&](const char* what) {
    return Error{where, fmt::format("expected a listing of files, found {}", what), "the server may be no hub"};
  };
  if (!list->is_array()) return bad("something else");
  const auto text = [](const Json& j, const char* key) {
    const auto at = j.find(key);
    return at != j.end() && at->is_string() ? at->get<std::string>() : std::string();
  };
  for (const Json& entry : *list) {
    if (!entry.is_object()) return bad("an entry that is none");
    if (text(entry, "type") != "file") continue;
    RemoteFile f{.path = text(entry, "path")};
    const auto size = entry.find("size");
    if (f.path.empty() || size == entry.end() || !size->is_number_unsigned()) return bad("a file without path or size");
    f.size = size->get<uint64_t>();
    if (f.size >> 20 > kMaxRemoteSize) return bad("a file of more than a terabyte");
    if (const auto lfs = entry.find("lfs"); lfs != entry.end() && lfs->is_object()) {
      f.sha256 = lower(text(*lfs, "oid"));
      if (f.sha256.starts_with("sha256:")) f.sha256.erase(0, 7);
      if (!is_hex(f.sha256, 64)) return bad("a file whose lfs.oid is no SHA-256");
    } else {
      f.git = lower(text(entry, "oid"));
    }
    files.push_back(std::move(f));
    if (files.size() > kMaxRemoteFiles)
      return Error{where, fmt::format("expected at most {} files, found more", kMaxRemoteFiles), ""};
  }
  return Ok{};
}

const RemoteFile* choose_encoders(const std::vector<RemoteFile>& files, const std::string& model_path) {
  const auto folder = [](std::string_view path) { return path.substr(0, path.rfind('/') + 1); };  // "" or "a/b/"
  const auto type_rank = [](std::string_view path) {
    constexpr std::string_view kTypes[] = {"bf16", "f16", "f32", "q8_0"};
    const auto* at = std::find(std::begin(kTypes), std::end(kTypes), lower(quant_of(path)));
    return at - std::begin(kTypes);
  };
  const auto order = [&](const RemoteFile& f) {
    return std::tuple(-ptrdiff_t(folder(f.path).size()), mmproj_name_rank(f.path, model_path), type_rank(f.path),
                      f.path);
  };
  const RemoteFile* best = nullptr;
  for (const RemoteFile& f : files)
    if (is_mmproj_name(f.path) && f.path != model_path && part_of(f.path).second == 0 && check_remote_path(f.path) &&
        folder(model_path).starts_with(folder(f.path)) && (!best || order(f) < order(*best)))
      best = &f;
  return best;
}

namespace {

Result<HubChoice> choose_weights(const std::vector<RemoteFile>& files, const HubName& name, HubUse use) {
  ByPath by_path;
  for (const RemoteFile& f : files) by_path.emplace(f.path, &f);
  if (!name.file.empty()) {
    const auto at = by_path.find(name.file);
    if (at == by_path.end())
      return Error{name.repo, fmt::format("expected a file {}, found none of that name", name.file),
                   "check its spelling on the hub"};
    return whole(by_path, *at->second, name);
  }
  std::vector<const RemoteFile*> models, drafters;  // the first parts
  for (const RemoteFile& f : files) {
    if (!lower(f.path).ends_with(".gguf") || is_no_weights(f.path) || part_of(f.path).first > 1) continue;
    (is_drafter_name(f.path) ? drafters : models).push_back(&f);
  }
  const auto& named = use == HubUse::kDrafter && !drafters.empty() ? drafters : models;
  if (named.empty() && use == HubUse::kDrafter) return weights(files, name);
  if (named.empty())
    return Error{
        name.repo, fmt::format("expected GGUF files of a model, found none{}", drafters.empty() ? "" : " but drafters"),
        drafters.empty() ? "look for a repository whose name ends in GGUF" : "--draft hf:USER/REPO takes those"};
  const auto of = [&](const std::string& quant) {
    std::vector<const RemoteFile*> found;
    for (const RemoteFile* f : named)
      if (lower(quant_of(f->path)) == lower(quant)) found.push_back(f);
    return found;
  };
  const std::string quant = name.quant.empty() ? kDefaultQuant : name.quant;
  auto found = of(quant);
  if (found.empty()) found = of("UD-" + quant);
  if (found.empty() && !name.quant.empty())
    return Error{name.repo, fmt::format("expected one of {}, found {}", names_of(named), shown(name.quant)),
                 "name one of them"};
  std::string note;
  if (found.empty()) {
    found = {named[0]};
    if (named.size() > 1)
      note = fmt::format("{} has no {}; {} is taken, of {}", name.repo, kDefaultQuant, shown(named[0]->path),
                         names_of(named));
  } else if (found.size() > 1) {
    note = fmt::format("{} has {} files of {}; {} is taken (--hf-file names another)", name.repo, found.size(), quant,
                       shown(found[0]->path));
  }
  auto choice = whole(by_path, *found[0], name);
  if (choice) choice->note = note;
  return choice;
}

}  // namespace

Result<HubChoice> choose_files(const std::vector<RemoteFile>& files, const HubName& name, HubUse use) {
  auto choice = choose_weights(files, name, use);
  if (!choice || use != HubUse::kModelWithEncoders || is_no_weights(choice->files[0].path)) return choice;
  if (const RemoteFile* encoders = choose_encoders(files, choice->files[0].path)) choice->files.push_back(*encoders);
  return choice;
}

}  // namespace facet
