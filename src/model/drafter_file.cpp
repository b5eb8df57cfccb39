#include "model/drafter_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/files.h"
#include "formats/format_error.h"
#include "formats/safetensors.h"
#include "model/drafter_dialects.h"

namespace facet {

const char* drafter_kind_name(DrafterKind k) {
  return k == DrafterKind::kDflash ? "dflash" : k == DrafterKind::kMtp ? "mtp" : "eagle3";
}

const TensorView* DrafterFile::find(std::string_view name) const {
  const auto at = by_name_.find(name);
  return at == by_name_.end() ? nullptr : &tensors_[at->second];
}

Result<int> count_blocks(const DrafterFile& f) {
  constexpr int kMax = 64;
  int n = 0;
  while (n <= kMax && f.find(fmt::format("blk.{}.attn_q.weight", n))) ++n;
  if (n == 0 || n > kMax)
    return Error{
        f.path(),
        fmt::format("blk.N.attn_q.weight: expected 1 to {} layers, found {}", kMax, n > kMax ? "more" : "none"),
        "the file is incomplete or no drafter; download or convert it again"};
  if (f.meta().n_layer && *f.meta().n_layer != n && f.meta().exact_counts)
    return Error{
        f.path(),
        fmt::format("number of layers: expected {}, as the metadata says, found tensors of {}", *f.meta().n_layer, n),
        "the file is incomplete; download or convert it again"};
  return n;
}

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

Result<json> read_config(const std::string& path) {
  std::error_code ec;
  if (!fs::exists(path, ec))
    return Error{path, "expected the configuration of the drafter, found no such file",
                 "keep config.json beside the .safetensors file"};
  const auto text = read_file(path, 1 << 20);
  if (!text) return text.error();
  json j = json::parse(*text, nullptr, /*allow_exceptions=*/false);
  if (!j.is_object()) return Error{path, "expected a JSON object, found something else", "download it again"};
  return j;
}

}  // namespace

class DrafterReader {
 public:
  static Result<DrafterFile> gguf(const std::string& path) {
    auto opened = GgufFile::open(path);
    if (!opened) return opened.error();
    auto file = std::make_shared<GgufFile>(std::move(*opened));
    auto arch = file->get_string("general.architecture");
    if (!arch) return arch.error();
    const auto family = drafter_family(*arch);
    if (!family)
      return Error{path, fmt::format("general.architecture: expected a drafter, found {}", printable(*arch)),
                   *arch == "gemma4" ? "this is a target: give it with -m" : kKnownDrafters};
    DrafterFile d;
    d.kind_ = family->kind;
    d.path_ = path;
    d.dialect_ = "GGUF " + *arch;
    if (!family->refuse.empty())
      return Error{path, fmt::format("expected a drafter for Gemma 4 that facet can run, found {}", d.dialect_),
                   family->refuse};
    auto meta = drafter_meta(*file, *arch, d.kind_);
    if (!meta) return meta.error();
    d.meta_ = std::move(*meta);
    d.file_bytes_ = file->file_bytes();
    if (auto ok = add(d, file->tensors()); !ok) return ok.error();
    drop_copies(d);
    if (auto ok = check_mask(d, *file); !ok) return ok.error();
    if (file->find_meta("tokenizer.ggml.tokens")) {
      auto tokens = file->get_strings("tokenizer.ggml.tokens");
      if (!tokens) return tokens.error();
      d.vocabulary_ = std::move(*tokens);
    }
    d.mapped_ = file;
    if (d.kind_ == DrafterKind::kEagle3) sort_pairs(d, file);
    return d;
  }

  static Result<DrafterFile> safetensors(const std::string& path) {
    const fs::path folder = fs::is_directory(path) ? fs::path(path) : fs::path(path).parent_path();
    const std::string where = (folder / "config.json").string();
    auto config = read_config(where);
    if (!config) return config.error();
    std::string cls;
    if (const auto a = config->find("architectures");
        a != config->end() && a->is_array() && !a->empty() && a->front().is_string())
      cls = a->front().get<std::string>();
    if (const auto s = config->find("speculators_model_type"); s != config->end() && s->is_string())
      cls = *s == "dflash"    ? "DFlashDraftModel"
            : *s == "dspark"  ? "DSparkDraftModel"
            : *s == "dflash2" ? "DFlash2DraftModel"
                              : s->get<std::string>();
    const auto family = drafter_family(cls);
    if (!family)
      return Error{where,
                   fmt::format("architectures: expected a drafter, found {}", cls.empty() ? "none" : printable(cls)),
                   kKnownDrafters};
    if (!family->refuse.empty())
      return Error{where, fmt::format("expected a drafter for Gemma 4 that facet can run, found {}", printable(cls)),
                   family->refuse};
    auto opened = SafetensorsFile::open(path);
    if (!opened) return opened.error();
    auto file = std::make_shared<SafetensorsFile>(std::move(*opened));
    DrafterFile d;
    d.kind_ = family->kind;
    d.path_ = path;
    d.dialect_ = "safetensors " + cls;
    auto meta = drafter_meta(*config, where, d.kind_);
    if (!meta) return meta.error();
    d.meta_ = std::move(*meta);
    d.file_bytes_ = file->file_bytes();
    if (auto ok = add(d, file->tensors()); !ok) return ok.error();
    drop_copies(d);
    d.mapped_ = file;
    return d;
  }

  static Result<DrafterFile> folder(const std::string& path) {
    std::vector<std::string> drafters;
    std::error_code ec;
    for (const auto& e : fs::directory_iterator(path, ec)) {
      if (e.path().extension() != ".gguf") continue;
      auto f = GgufFile::open(e.path());
      if (!f) continue;
      auto arch = f->get_string("general.architecture");
      if (arch && drafter_family(*arch)) drafters.push_back(e.path());
    }
    if (ec) return Error{path, fmt::format("cannot list the folder: {}", ec.message()), "check its permissions"};
    if (drafters.size() > 1) {
      std::sort(drafters.begin(), drafters.end());
      return Error{path,
                   fmt::format("expected one drafter, found {} ({}, {}{})", drafters.size(),
                               fs::path(drafters[0]).filename().string(), fs::path(drafters[1]).filename().string(),
                               drafters.size() > 2 ? ", ..." : ""),
                   "name the file"};
    }
    const bool weights =
        fs::exists(fs::path(path) / "model.safetensors") || fs::exists(fs::path(path) / "model.safetensors.index.json");
    if (drafters.empty() && !weights)
      return Error{path, "expected a drafter (.gguf, or model.safetensors with config.json), found none",
                   "name the file"};
    if (drafters.empty()) return safetensors(path);
    auto d = gguf(drafters[0]);
    if (d && weights) d->notes.push_back(fmt::format("{} chosen, not the safetensors beside it", drafters[0]));
    return d;
  }

 private:
  // Rows of the target that were frozen in training, gigabytes of them: nobody reads them, so nobody plans for them.
  static void drop_copies(DrafterFile& d) {
    const bool own_head = d.find("d2t") != nullptr, deep_spec = d.meta_.trainer == DrafterTrainer::kDeepSpec;
    auto is_copy = [&](const TensorView& t) {
      if (d.kind_ == DrafterKind::kMtp) return false;
      if (t.name == "output.weight") return deep_spec && !own_head;
      return t.name == "token_embd.weight" &&
             (d.kind_ == DrafterKind::kEagle3 ? !d.meta_.own_embedding : deep_spec || own_head);
    };
    std::erase_if(d.tensors_, is_copy);
    d.by_name_.clear();
    for (size_t i = 0; i < d.tensors_.size(); ++i) d.by_name_.emplace(d.tensors_[i].name, i);
  }

  // llama.cpp's converter puts the two rows of a RoPE pair side by side; here they are half a head apart. Copies of the
  // rows of queries and keys in that order.
  static void sort_pairs(DrafterFile& d, const std::shared_ptr<GgufFile>& file) {
    struct Kept {
      std::shared_ptr<GgufFile> file;
      std::vector<std::vector<std::byte>> rows;
    };
    const auto kept = std::make_shared<Kept>(Kept{file, {}});
    const int64_t E = d.meta_.head_dim.value_or(0);
    for (const char* name : {"blk.0.attn_q.weight", "blk.0.attn_k.weight"}) {
      const auto at = d.by_name_.find(name);
      if (at == d.by_name_.end()) continue;  // whoever binds it says so
      TensorView& t = d.tensors_[at->second];
      if (E < 2 || E % 2 != 0 || t.ne[1] % E != 0 || t.n_dims != 2 || t.ne[1] == 0) continue;
      const size_t row = t.data.size() / size_t(t.ne[1]);
      auto& to = kept->rows.emplace_back(t.data.size());
      for (int64_t r = 0; r < t.ne[1]; ++r) {
        const int64_t head = r / E * E, i = r % E;  // in the file
        std::copy_n(t.data.begin() + ptrdiff_t(size_t(r) * row), row,
                    to.begin() + ptrdiff_t(size_t(head + i / 2 + (i % 2 ? E / 2 : 0)) * row));
      }
      t.data = to;
    }
    d.mapped_ = kept;
  }

  static Status add(DrafterFile& d, std::span<const TensorView> tensors) {
    std::map<std::string, std::string> origin;
    const bool gemma_layers =
        d.kind_ == DrafterKind::kMtp || std::any_of(tensors.begin(), tensors.end(), [](const TensorView& t) {
          return t.name.ends_with("pre_feedforward_layernorm.weight");
        });
    for (const TensorView& t : tensors) {
      TensorView v = t;
      v.name = common_name(t.name, d.kind_, gemma_layers);
      if (!d.by_name_.emplace(v.name, d.tensors_.size()).second)
        return Error{d.path_,
                     fmt::format("{}: expected one tensor of this meaning, found {} too", printable(t.name),
                                 printable(origin[v.name])),
                     "the file mixes dialects; convert it again"};
      origin[v.name] = t.name;
      d.tensors_.push_back(std::move(v));
    }
    // One dialect of DFlash calls the norm before the FFN by the name that means another norm elsewhere.
    if (d.kind_ == DrafterKind::kDflash && !d.find("blk.0.ffn_norm.weight"))
      for (TensorView& t : d.tensors_)
        if (const auto layer = split_layer(t.name, "blk."); layer && layer->second == "post_attention_norm.weight") {
          const std::string name = fmt::format("blk.{}.ffn_norm.weight", layer->first);
          auto node = d.by_name_.extract(t.name);
          node.key() = t.name = name;
          d.by_name_.insert(std::move(node));
        }
    return Ok{};
  }

  static Status check_mask(const DrafterFile& d, const GgufFile& f) {
    if (d.kind_ != DrafterKind::kDflash || !d.meta_.mask_id || !f.find_meta("tokenizer.ggml.tokens")) return Ok{};
    auto tokens = f.get_strings("tokenizer.ggml.tokens");
    if (!tokens) return tokens.error();
    const auto at = std::find(tokens->begin(), tokens->end(), "<mask>");
    if (at == tokens->end() || at - tokens->begin() == *d.meta_.mask_id) return Ok{};
    return Error{
        d.path_,
        fmt::format("mask token: expected {}, the id of <mask>, found {}", at - tokens->begin(), *d.meta_.mask_id),
        "convert the drafter again"};
  }
};

Result<DrafterFile> DrafterFile::open(const std::string& path) {
  std::error_code ec;
  if (fs::is_directory(path, ec)) return DrafterReader::folder(path);
  if (!fs::exists(path, ec)) return Error{path, "expected a drafter, found no such file", "check the path"};
  const std::string ext = fs::path(path).extension();
  return ext == ".safetensors" || ext == ".json" ? DrafterReader::safetensors(path) : DrafterReader::gguf(path);
}

}  // namespace facet
