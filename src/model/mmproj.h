#pragma once
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "formats/gguf.h"
#include "model/types.h"

namespace facet {

// Encoders of pictures and sound of Gemma 4, from an mmproj file (llama.cpp's converter: architecture clip) or from a
// model file that holds them as well (Ollama: gemma4.vision.*, gemma4.audio.*).

// Of pictures. gemma4v (E2B, E4B, 26B, 31B): a tower of layers over patches of 16 x 16 pixels. gemma4uv (12B): one
// embedding of cells of 48 x 48 pixels, no layers.
struct VisionCfg {
  bool is_unified = false;
  int d_model = 0, n_head = 0, head_dim = 0, d_ff = 0, n_layer = 0;
  int patch = 16, pool = 3;           // pixels of a patch, patches of a soft token, on a side
  int n_pos = 0;                      // positions on a side that have an embedding, in patches (gemma4uv: cells)
  int d_out = 0;                      // columns of a soft token: the text model's width
  bool has_clips = false;             // clipped linears: E2B, E4B
  bool standardizes = false;          // 26B, 31B
  float eps = 1e-6f, ln_eps = 1e-5f;  // of RMS norms; of gemma4uv's LayerNorms
  // Pixels of one row of input on a side, and the row's columns.
  int cell() const { return is_unified ? patch * pool : patch; }
  int patch_cols() const { return 3 * cell() * cell(); }
  const char* projector() const { return is_unified ? "gemma4uv" : "gemma4v"; }
};

// Of sound. gemma4a (E2B, E4B): a conformer over frames of a mel spectrogram. gemma4ua (12B): frames of samples.
struct AudioCfg {
  bool is_unified = false;
  int d_model = 0, n_head = 0, head_dim = 0, d_ff = 0, n_layer = 0;
  int n_mel = 128, conv[2] = {0, 0};  // channels after either convolution
  int kernel = 5;                     // taps of the depthwise convolution
  int d_project = 0;                  // columns of the output projection
  int frame = 640;                    // gemma4ua: samples of a frame
  int d_out = 0;
  bool has_clips = false;
  float eps = 1e-6f;
  // Keys that a token sees, itself included. The official implementation has 12, others that came after it 13.
  int n_key = 12, n_distance = 13;
  float softcap = 50.f;
  int n_token(int rows) const { return is_unified ? rows : ((rows + 1) / 2 + 1) / 2; }  // rows: of its input
  const char* projector() const { return is_unified ? "gemma4ua" : "gemma4a"; }
};

// Values that a clipped linear clamps its input and its output to.
struct Clip {
  float in_min = -kNoClip, in_max = kNoClip, out_min = -kNoClip, out_max = kNoClip;
  static constexpr float kNoClip = 3.402823466e38f;
  bool clips_input() const { return in_min > -kNoClip || in_max < kNoClip; }
  bool clips_output() const { return out_min > -kNoClip || out_max < kNoClip; }
  bool same_input(const Clip& o) const { return in_min == o.in_min && in_max == o.in_max; }
  bool operator==(const Clip&) const = default;
};

// One such file, mapped: what it holds under one set of names, those of llama.cpp's converter, matrices as matrices.
class MmprojFile {
 public:
  // Refuses what is no mmproj file, what contradicts itself and projector types other than the four. Shapes of layers
  // are checked when they are bound.
  static Result<MmprojFile> open(const std::string& path);

  const std::string& path() const { return file_.path(); }
  const GgufFile& file() const { return file_; }
  const std::optional<VisionCfg>& vision() const { return vision_; }
  const std::optional<AudioCfg>& audio() const { return audio_; }
  bool is_of_ollama() const { return is_of_ollama_; }  // beside a text model's tensors
  const std::vector<TensorView>& tensors() const { return tensors_; }
  const TensorView* find(const std::string& name) const;  // null if absent
  // Of a linear: 'v.blk.0.attn_q'. None: no clip.
  Result<Clip> clip(const std::string& base) const;
  int text_width() const { return vision_ ? vision_->d_out : audio_ ? audio_->d_out : 0; }
  uint64_t weight_bytes() const;

 private:
  explicit MmprojFile(GgufFile file) : file_(std::move(file)) {}
  void take_tensors();
  Status read_vision(const std::string& projector);
  Status read_audio(const std::string& projector);
  GgufFile file_;
  bool is_of_ollama_ = false;
  std::optional<VisionCfg> vision_;
  std::optional<AudioCfg> audio_;
  std::vector<TensorView> tensors_;
  std::unordered_map<std::string, size_t> by_name_;
};

// One line: "pictures: gemma4v, 16 layers of 768, ...; sound: ...; for a model of width 2560".
std::string describe_encoders(const MmprojFile& file);

// An error of a file whose soft tokens are not as wide as a text model's embeddings.
Status check_mmproj(const MmprojFile& mmproj, const std::string& model_path, const ModelCfg& model);

// The mmproj file for a model: option is a path, "auto" (beside the model, by content: its width, and that the
// encoders are whole; of several the one named like the model, then BF16, F16, F32, Q8_0; the model itself, if it holds
// encoders) or "none". "": there is none. notes: lines about files that were left out and why. root: a folder that the
// model may be far below, as that of a repository: folders between count as beside it, too.
Result<std::string> find_mmproj(const std::string& option, const std::string& model_path, const ModelCfg& model,
                                std::vector<std::string>* notes = nullptr, const std::string& root = "");

}  // namespace facet
