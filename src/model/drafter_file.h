#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "formats/dtype.h"

namespace facet {

enum class DrafterKind : uint8_t { kDflash, kMtp, kEagle3 };
// Whose program trained a drafter: what its file leaves unsaid depends on it (drafter_rules.h).
enum class DrafterTrainer : uint8_t { kAuthors, kSpeculators, kDeepSpec };
const char* drafter_kind_name(DrafterKind k);  // "dflash", "mtp", "eagle3"

// What a drafter file says about its drafter, in one vocabulary for all dialects. Empty: it does not say. Counts are
// as found: dflash_config and mtp_config check them against the tensors and the target.
struct DrafterMeta {
  std::optional<int64_t> n_layer, d_model, n_head, d_ff, n_vocab;  // what tensors tell too
  std::optional<int64_t> window;
  std::vector<bool> sliding;  // per layer
  std::optional<double> eps, softcap, embed_scale;
  std::optional<double> theta, theta_swa;   // theta: of full layers, or of all
  std::optional<std::string> rope_scaling;  // a kind of scaling other than none
  // DFlash
  std::optional<int64_t> block, mask_id, target_depth;
  std::vector<int64_t> taps;   // target layers, counted from 0, whose output is tapped
  std::optional<bool> causal;  // inside a block, in all layers
  bool exact_counts = true;    // false: a dialect known to write wrong counts
  std::string other_head;      // a key that declares a head which facet does not have
  DrafterTrainer trainer = DrafterTrainer::kAuthors;
  std::optional<bool> sliding_non_causal;  // sliding layers see all of a block
  std::optional<bool> sample_from_anchor;  // a slot is about the token behind it, else about its own
  std::optional<int64_t> n_speculative;    // drafts of a block
  std::optional<int64_t> markov_rank;      // 0: there is no Markov head
  std::optional<double> partial;           // share of a full layer's pairs that RoPE rotates
  std::optional<int64_t> conv_taps, conv_group, selector_rank, selector_top_k;  // DFlash 2
  std::optional<double> asked_embed_scale;                                      // --draft-embedding-scale
  // EAGLE-3
  std::optional<int64_t> head_dim;
  bool norm_before_residual = false, norm_before_fc = false, fc_norm = false, norm_output = false;
  bool own_embedding = false;  // the file's rows were trained
  // MTP
  std::optional<int64_t> d_target, top_k;
  std::optional<bool> clustered;
  std::vector<int64_t> kv_heads;  // of the donors, per layer; 0: it does not say
};

// A drafter on disk, mapped: any GGUF dialect, or safetensors with a config.json beside it. Tensors have the names
// of llama.cpp's dialects (dflash, gemma4-assistant) whatever the file calls them.
class DrafterFile {
 public:
  // path: a .gguf, a .safetensors, or a folder. In a folder a GGUF is preferred to safetensors, and a note says so.
  static Result<DrafterFile> open(const std::string& path);

  DrafterKind kind() const { return kind_; }
  const std::string& path() const { return path_; }        // of the file that was chosen
  const std::string& dialect() const { return dialect_; }  // "GGUF dflash-draft", "safetensors DFlashDraftModel"
  const DrafterMeta& meta() const { return meta_; }
  const std::vector<TensorView>& tensors() const { return tensors_; }
  const TensorView* find(std::string_view name) const;                             // null if absent
  const std::vector<std::string_view>& vocabulary() const { return vocabulary_; }  // texts; empty: the file has none
  uint64_t file_bytes() const { return file_bytes_; }
  // Overrules what the file and its trainer say of DFlash's embeddings: 1 takes the rows as they are.
  void set_embedding_scale(double scale) { meta_.asked_embed_scale = scale; }

  // Things a user should know: what was chosen, what was ignored. The loaders add theirs.
  std::vector<std::string> notes;

 private:
  friend class DrafterReader;
  DrafterKind kind_ = DrafterKind::kDflash;
  std::string path_, dialect_;
  DrafterMeta meta_;
  std::vector<TensorView> tensors_;
  std::vector<std::string_view> vocabulary_;
  std::map<std::string, size_t, std::less<>> by_name_;
  uint64_t file_bytes_ = 0;
  std::shared_ptr<const void> mapped_;  // what the tensors point into
};

// Blocks blk.0 .. blk.n-1 that the file has, at most 64: an error beyond, and when metadata says another number.
Result<int> count_blocks(const DrafterFile& f);

}  // namespace facet
