#include "model/mmproj.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <string_view>

#include "formats/format_error.h"
#include "model/meta_reader.h"

namespace facet {
namespace {

constexpr const char* kConvertAgain = "convert or download the mmproj file again";

// Ollama's names of audio tensors that mean something else than llama.cpp's, which come second. Both have ln2: where
// there is layer_pre_norm, it is Ollama's.
constexpr std::pair<const char*, const char*> kOllamaAudio[] = {
    {"a.pre_encode.out.weight", "a.input_projection.weight"},
    {"mm.a.fc.weight", "a.pre_encode.out.weight"},
    {"mm.a.fc.bias", "a.pre_encode.out.bias"},
};
constexpr std::pair<const char*, const char*> kOllamaAudioLayer[] = {
    {"ln1.weight", "attn_pre_norm.weight"},
    {"ln2.weight", "attn_post_norm.weight"},
    {"layer_pre_norm.weight", "ln2.weight"},
    {"linear_pos.weight", "attn_k_rel.weight"},
};
// Of a layer, in the order of Ollama's v.clamp_data.
constexpr const char* kClampOrder[] = {"attn_q", "attn_k", "attn_v", "attn_out", "ffn_gate", "ffn_up", "ffn_down"};
constexpr std::array<const char*, 4> kClipNames = {"input_min", "input_max", "output_min", "output_max"};

std::string llama_name(const std::string& name) {
  for (const auto& [ollama, llama] : kOllamaAudio)
    if (name == ollama) return llama;
  if (!name.starts_with("a.blk.")) return name;
  const size_t dot = name.find('.', 6);
  if (dot == name.npos) return name;
  for (const auto& [ollama, llama] : kOllamaAudioLayer)
    if (std::string_view(name).substr(dot + 1) == ollama) return name.substr(0, dot + 1) + llama;
  return name;
}

// Convolutions over whole patches, and pairs of tables, as matrices.
void flatten(TensorView& t) {
  if (t.name == "v.patch_embd.weight" && t.n_dims == 4) t.ne = {t.ne[0] * t.ne[1] * t.ne[2], t.ne[3], 1, 1};
  if (t.name == "v.position_embd.weight" && t.n_dims == 3) t.ne = {t.ne[0], t.ne[1] * t.ne[2], 1, 1};
  if (t.name == "v.patch_embd.weight" || t.name == "v.position_embd.weight") t.n_dims = 2;
}

// Of a linear of a layer, among those of v.clamp_data; negative: none.
int64_t clamp_index(const std::string& base, int n_layer) {
  if (!base.starts_with("v.blk.")) return -1;
  int layer = -1;
  const char *begin = base.data() + 6, *end = base.data() + base.size();
  const auto [at, ec] = std::from_chars(begin, end, layer);
  if (ec != std::errc{} || at == end || layer < 0 || layer >= n_layer) return -1;
  for (int i = 0; i < 7; ++i)
    if (std::string_view(at + 1, size_t(end - at - 1)) == kClampOrder[i]) return int64_t(layer) * 7 + i;
  return -1;
}

Error unknown_projector(const GgufFile& file, const std::string& key, const std::string& found, const char* expected) {
  return {file.path(), fmt::format("{}: expected {}, found {}", key, expected, printable(found)),
          "facet runs the encoders of Gemma 4 only; take the mmproj file of the model that you run"};
}

}  // namespace

const TensorView* MmprojFile::find(const std::string& name) const {
  const auto at = by_name_.find(name);
  return at == by_name_.end() ? nullptr : &tensors_[at->second];
}

uint64_t MmprojFile::weight_bytes() const {
  uint64_t n = 0;
  for (const TensorView& t : tensors_) n += t.data.size();
  return n;
}

void MmprojFile::take_tensors() {
  const bool ollama_names = file_.find("a.blk.0.layer_pre_norm.weight") != nullptr;
  for (const TensorView& t : file_.tensors()) {
    if (!t.name.starts_with("v.") && !t.name.starts_with("a.") && !t.name.starts_with("mm.")) continue;
    TensorView& mine = tensors_.emplace_back(t);
    if (ollama_names) mine.name = llama_name(mine.name);
    flatten(mine);
  }
  // Norms of gemma4uv's patches are counted from 1; one early converter counts from 0.
  if (file_.find("v.patch_norm.0.weight"))
    for (TensorView& t : tensors_)
      if (t.name.starts_with("v.patch_norm.") && t.name.size() > 13) ++t.name[13];
  for (size_t i = 0; i < tensors_.size(); ++i) by_name_.emplace(tensors_[i].name, i);
}

Result<MmprojFile> MmprojFile::open(const std::string& path) {
  auto file = GgufFile::open(path);
  if (!file) return file.error();
  MmprojFile m(std::move(*file));
  const GgufFile& f = m.file_;
  auto arch = f.get_string("general.architecture");
  if (!arch) return arch.error();
  m.is_of_ollama_ =
      *arch == "gemma4" && (f.find_meta("gemma4.vision.block_count") || f.find_meta("gemma4.audio.block_count"));
  if (*arch != "clip" && !m.is_of_ollama_)
    return Error{path, fmt::format("general.architecture: expected clip, found {}", printable(*arch)),
                 *arch == "gemma4" ? "this is a text model without encoders: give the mmproj file that belongs to it"
                                   : "give the mmproj file of a Gemma 4 model"};
  m.take_tensors();
  // The type of the projector of either kind. Files with one encoder may have it without the kind.
  auto projector = [&](const char* kind) -> Result<std::string> {
    if (m.is_of_ollama_)
      return std::string(!f.find_meta(fmt::format("gemma4.{}.block_count", kind)) ? ""
                         : *kind == 'v'                                           ? "gemma4v"
                                                                                  : "gemma4a");
    const std::string has = fmt::format("clip.has_{}_encoder", kind), own = fmt::format("clip.{}.projector_type", kind);
    if (f.find_meta(has)) {
      auto is = f.get_bool(has);
      if (!is) return is.error();
      if (!*is) return std::string();
    } else if (!f.find_meta(own)) {
      return std::string();
    }
    return f.get_string(f.find_meta(own) ? own : "clip.projector_type");
  };
  auto vision = projector("vision"), audio = projector("audio");
  if (!vision) return vision.error();
  if (!audio) return audio.error();
  if (vision->empty() && audio->empty())
    return Error{path, "clip.has_vision_encoder, clip.has_audio_encoder: expected one that is true, found none",
                 kConvertAgain};
  if (!vision->empty())
    if (auto ok = m.read_vision(*vision); !ok) return ok.error();
  if (!audio->empty())
    if (auto ok = m.read_audio(*audio); !ok) return ok.error();
  if (m.vision_ && m.audio_ && m.vision_->d_out != m.audio_->d_out)
    return Error{path,
                 fmt::format("clip.audio.projection_dim: expected {}, as of pictures, found {}", m.vision_->d_out,
                             m.audio_->d_out),
                 kConvertAgain};
  return m;
}

Status MmprojFile::read_vision(const std::string& projector) {
  if (projector != "gemma4v" && projector != "gemma4uv")
    return unknown_projector(file_, "clip.vision.projector_type", projector, "gemma4v or gemma4uv");
  VisionCfg v;
  v.is_unified = projector == "gemma4uv";
  MetaReader r(file_, is_of_ollama_ ? "gemma4.vision." : "clip.vision.", kConvertAgain);
  v.d_model = r.integer("embedding_length", 4, 1 << 16);
  v.patch = r.integer_or("patch_size", 16, 1, 64);
  v.pool = r.integer_or("projector.scale_factor", 3, 1, 16);
  v.n_layer = r.integer("block_count", v.is_unified ? 0 : 1, 1024);
  if (!v.is_unified) {
    v.d_ff = r.integer("feed_forward_length", 4, 1 << 20);
    v.n_head = r.integer("attention.head_count", 1, 1024);
    v.eps = r.real_or("attention.layer_norm_epsilon", 1e-6, 0, 1e-2);
    v.head_dim = v.d_model / v.n_head;
    if (v.d_model % v.n_head != 0 || v.head_dim % 8 != 0 || v.head_dim > 128)
      r.fail(r.full("attention.head_count"),
             fmt::format("heads of a multiple of 8 and at most 128 columns, of {}", v.d_model),
             fmt::format("{} heads", v.n_head));
  } else if (v.n_layer != 0) {
    r.fail(r.full("block_count"), "0, as gemma4uv has no layers", fmt::format("{}", v.n_layer));
  }
  MetaReader text(file_, "gemma4.", kConvertAgain);
  v.d_out = is_of_ollama_ ? text.integer("embedding_length", 1, 1 << 17) : r.integer("projection_dim", 1, 1 << 17);
  if (text.error()) return *text.error();
  if (r.error()) return *r.error();
  const TensorView* table = find("v.position_embd.weight");
  if (!table || table->ne[0] != v.d_model || table->ne[1] % 2 != 0 || table->ne[1] < 2 || table->ne[1] > (1 << 17))
    return Error{path(),
                 fmt::format("v.position_embd.weight: expected [{} x positions x 2], found {}", v.d_model,
                             table ? shape_string(*table) : "no such tensor"),
                 kConvertAgain};
  v.n_pos = int(table->ne[1] / 2);
  v.standardizes = find("v.std_bias") || find("v.std_scale");
  v.has_clips = find("v.blk.0.attn_q.input_min") || find("v.blk.0.attn_q.input_max") || find("v.clamp_data");
  vision_ = v;
  return Ok{};
}

Status MmprojFile::read_audio(const std::string& projector) {
  if (projector != "gemma4a" && projector != "gemma4ua")
    return unknown_projector(file_, "clip.audio.projector_type", projector, "gemma4a or gemma4ua");
  AudioCfg a;
  a.is_unified = projector == "gemma4ua";
  MetaReader r(file_, is_of_ollama_ ? "gemma4.audio." : "clip.audio.", kConvertAgain);
  MetaReader text(file_, "gemma4.", kConvertAgain);
  a.d_out = is_of_ollama_ ? text.integer("embedding_length", 1, 1 << 17) : r.integer("projection_dim", 1, 1 << 17);
  a.d_model = r.integer("embedding_length", 4, 1 << 16);
  if (text.error()) return *text.error();
  if (a.is_unified) {
    a.frame = a.d_model;
    if (!r.error()) audio_ = a;
    return r.error() ? Status(*r.error()) : Status(Ok{});
  }
  a.n_layer = r.integer("block_count", 1, 1024);
  a.d_ff = r.integer("feed_forward_length", 4, 1 << 20);
  a.n_head = r.integer("attention.head_count", 1, 1024);
  a.n_mel = r.integer_or("num_mel_bins", 128, 4, 4096);
  a.kernel = r.integer_or("conv_kernel_size", 5, 1, 64);  // the epsilon of some files is wrong: it is 1e-6 always
  a.head_dim = a.d_model / a.n_head;
  if (a.d_model % a.n_head != 0 || a.head_dim % 4 != 0 || a.head_dim > 512)
    r.fail(r.full("attention.head_count"),
           fmt::format("heads of a multiple of 4 and at most 512 columns, of {}", a.d_model),
           fmt::format("{} heads", a.n_head));
  if (a.n_mel % 4 != 0) r.fail(r.full("num_mel_bins"), "a multiple of 4", fmt::format("{}", a.n_mel));
  if (r.error()) return *r.error();
  // Sizes that only shapes tell.
  auto size = [&](const char* name, int dim, int& to) -> Status {
    const TensorView* t = find(name);
    if (!t || t->ne[size_t(dim)] < 1 || t->ne[size_t(dim)] > (1 << 16))
      return Error{path(),
                   fmt::format("{}: expected a tensor of 1 to 65536 rows, found {}", name,
                               t ? shape_string(*t) : "no such tensor"),
                   kConvertAgain};
    to = int(t->ne[size_t(dim)]);
    return Ok{};
  };
  if (auto ok = size("a.conv1d.0.weight", 3, a.conv[0]); !ok) return ok;
  if (auto ok = size("a.conv1d.1.weight", 3, a.conv[1]); !ok) return ok;
  if (auto ok = size("a.pre_encode.out.weight", 1, a.d_project); !ok) return ok;
  a.has_clips = find("a.blk.0.attn_q.input_min") || find("a.blk.0.attn_q.input_max");
  audio_ = a;
  return Ok{};
}

Result<Clip> MmprojFile::clip(const std::string& base) const {
  Clip c;
  float* const value[] = {&c.in_min, &c.in_max, &c.out_min, &c.out_max};
  bool found = false;
  for (size_t i = 0; i < 4; ++i) {
    const std::string name = fmt::format("{}.{}", base, kClipNames[i]);
    const TensorView* t = find(name);
    if (!t) continue;
    found = true;
    if (t->type != DType::kF32 || t->n_elements() != 1)
      return Error{path(),
                   fmt::format("{}: expected F32 [1], found {} {}", name, dtype_name(t->type), shape_string(*t)),
                   kConvertAgain};
    dequantize_row(t->type, t->data.data(), value[i], 1);
  }
  if (const TensorView* packed = found ? nullptr : find("v.clamp_data"); packed && vision_) {
    const int64_t n = (int64_t(vision_->n_layer) * 7 + 1) * 4;
    if (packed->type != DType::kF32 || packed->n_elements() != n)
      return Error{path(),
                   fmt::format("v.clamp_data: expected F32 [{}], found {} {}", n, dtype_name(packed->type),
                               shape_string(*packed)),
                   kConvertAgain};
    const int64_t at = base == "mm.input_projection" ? n - 4 : 4 * clamp_index(base, vision_->n_layer);
    if (at >= 0) {
      float v[4];
      dequantize_row(DType::kF32, packed->data.data() + at * 4, v, 4);
      if (v[0] != 0 || v[1] != 0 || v[2] != 0 || v[3] != 0)  // zeros: none
        for (size_t i = 0; i < 4; ++i) *value[i] = v[i];
    }
  }
  for (size_t i = 0; i < 4; i += 2)
    if (!(*value[i] <= *value[i + 1]))
      return Error{path(),
                   fmt::format("{}.{}: expected at most {}, {}, found {}", base, kClipNames[i], kClipNames[i + 1],
                               *value[i + 1], *value[i]),
                   kConvertAgain};
  return c;
}

std::string describe_encoders(const MmprojFile& file) {
  std::string line;
  if (const auto& v = file.vision()) {
    line = v->is_unified
               ? fmt::format("pictures: gemma4uv, cells of {0} x {0} pixels", v->cell())
               : fmt::format("pictures: gemma4v, {} layers of {}, {} heads", v->n_layer, v->d_model, v->n_head);
    if (v->has_clips) line += ", clipped linears";
    if (v->standardizes) line += ", standardised";
    line += "; ";
  }
  if (const auto& a = file.audio())
    line += a->is_unified
                ? fmt::format("sound: gemma4ua, frames of {} samples; ", a->frame)
                : fmt::format("sound: gemma4a, {} layers of {}, {} heads; ", a->n_layer, a->d_model, a->n_head);
  return line + fmt::format("for a model of width {}", file.text_width());
}

}  // namespace facet
