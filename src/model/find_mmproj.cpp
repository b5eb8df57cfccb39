#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <string_view>
#include <tuple>

#include "base/mmap.h"
#include "formats/mmproj_name.h"
#include "model/mmproj.h"

namespace facet {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMostFiles = 256;  // looked at in one search; a folder of models has fewer

// Whether a file's architecture is clip, by its first bytes: text models' metadata is long.
bool begins_as_mmproj(const std::string& path) {
  auto map = MappedFile::open(path);
  if (!map) return false;
  const auto bytes = map->bytes().first(std::min<size_t>(map->bytes().size(), 4096));
  const std::string_view head(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  using namespace std::string_view_literals;
  return head.starts_with("GGUF"sv) && head.find("general.architecture\x08\0\0\0\x04\0\0\0\0\0\0\0clip"sv) != head.npos;
}

// BF16, F16, F32, Q8_0, others.
int type_rank(const MmprojFile& m) {
  auto type = m.file().get_int("general.file_type");
  if (!type) return 4;
  return *type == 32 ? 0 : *type == 1 ? 1 : *type == 0 ? 2 : *type == 7 ? 3 : 4;
}

// GGUF files of a folder but the model's own.
void list_files(const fs::path& folder, const std::string& model_path, std::vector<std::string>& paths) {
  std::error_code ec;
  for (fs::directory_iterator it(folder, ec), end; !ec && it != end && paths.size() < kMostFiles; it.increment(ec)) {
    std::error_code none;
    if (it->path().extension() == ".gguf" && it->is_regular_file(none) && !fs::equivalent(it->path(), model_path, none))
      paths.push_back(folder == "." ? it->path().filename().string() : it->path().string());
  }
}

// Whether a folder is below another one, by their names; nothing is below "".
bool is_below(const fs::path& folder, const std::string& root) {
  return !root.empty() && folder.string().starts_with(root + "/") && folder.string().size() > root.size() + 1;
}

struct Candidate {
  int name_rank = 0;  // 0: named like the model, 1: like none, 2: like another
  int type = 0;
  std::string path;
  auto order() const { return std::tie(name_rank, type, path); }
};

}  // namespace

Status check_mmproj(const MmprojFile& mmproj, const std::string& model_path, const ModelCfg& model) {
  if (mmproj.text_width() == model.d_model) return Ok{};
  return Error{mmproj.path(),
               fmt::format("projection_dim: expected {}, the width of {}, found {}", model.d_model, model_path,
                           mmproj.text_width()),
               "this mmproj file belongs to another model; give the one that was made with yours"};
}

Result<std::string> find_mmproj(const std::string& option, const std::string& model_path, const ModelCfg& model,
                                std::vector<std::string>* notes, const std::string& root) {
  if (option == "none") return std::string();
  if (option != "auto") {
    auto file = MmprojFile::open(option);
    if (!file) return file.error();
    if (auto ok = check_mmproj(*file, model_path, model); !ok) return ok.error();
    return option;
  }
  // The model's own file, as Ollama keeps them.
  auto note = [&](const Error& e) {
    if (notes) notes->push_back(e.message());
  };
  if (auto whole = GgufFile::open(model_path);
      whole && (whole->find_meta("gemma4.vision.block_count") || whole->find_meta("gemma4.audio.block_count"))) {
    auto file = MmprojFile::open(model_path);
    if (file) return model_path;
    note(file.error());
  }
  std::vector<std::string> paths;
  fs::path folder = fs::path(model_path).parent_path();
  if (folder.empty()) folder = ".";
  list_files(folder, model_path, paths);
  while (is_below(folder, root)) list_files(folder = folder.parent_path(), model_path, paths);
  std::vector<Candidate> fit;
  for (const std::string& path : paths) {
    if (!begins_as_mmproj(path)) continue;
    auto file = MmprojFile::open(path);
    if (!file) {
      note(file.error());
      continue;
    }
    if (auto ok = check_mmproj(*file, model_path, model); !ok) {
      note(ok.error());
      continue;
    }
    fit.push_back({mmproj_name_rank(path, model_path), type_rank(*file), path});
  }
  if (fit.empty()) return std::string();
  return std::min_element(fit.begin(), fit.end(),
                          [](const Candidate& a, const Candidate& b) { return a.order() < b.order(); })
      ->path;
}

}  // namespace facet
