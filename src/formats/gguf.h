#pragma once
#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <variant>
#include <vector>

#include "base/mmap.h"
#include "base/result.h"
#include "formats/dtype.h"

// GGUF v2 and v3, little endian (github.com/ggml-org/ggml, docs/gguf.md).
namespace facet {

// A metadata value. Integers of every width are int64 (u64 above 2^63 is refused), floats are double.
// Arrays are homogeneous; string arrays keep views into the mapping.
struct GgufValue {
  enum class Kind : uint8_t { kInt, kFloat, kBool, kString, kIntArray, kFloatArray, kBoolArray, kStringArray };
  std::variant<int64_t, double, bool, std::string_view, std::vector<int64_t>, std::vector<double>, std::vector<bool>,
               std::vector<std::string_view>>
      v;
  uint32_t gguf_type = 0;  // as in the file; of the elements for arrays
  Kind kind() const { return Kind(v.index()); }
};
const char* gguf_kind_name(GgufValue::Kind k);
// Value types of metadata, as numbered in files.
namespace gguf_type {
inline constexpr uint32_t kU8 = 0, kI8 = 1, kU16 = 2, kI16 = 3, kU32 = 4, kI32 = 5, kF32 = 6, kBool = 7, kString = 8,
                          kArray = 9, kU64 = 10, kI64 = 11, kF64 = 12;
}
const char* gguf_type_name(uint32_t gguf_type);  // "u32"; "unknown" beyond the list

// What a file may be quantised to, for messages.
inline constexpr const char* kDecodedTypes = "Q2_K..Q8_0, IQ1_S..IQ4_XS, MXFP4, NVFP4, BF16, F16 or F32";

// A tensor of a type that dtype.h does not have, which nothing here can decode.
struct ForeignTensor {
  std::string name;
  uint32_t ggml_id = 0;
  int n_dims = 0;
  std::array<int64_t, 4> ne{1, 1, 1, 1};
  uint64_t bytes = 0;  // 0: of a type whose blocks are not known either
};
std::string foreign_type_name(uint32_t ggml_id);  // "IQ2_XXS"; "type 77" for one without a known name

// What one file says; views point into the bytes that were parsed.
struct GgufContents {
  uint32_t version = 0;
  uint64_t alignment = 32;
  uint64_t data_offset = 0;                             // of the tensor data, from the start of the file
  std::vector<std::pair<std::string, GgufValue>> meta;  // in file order
  std::vector<TensorView> tensors;                      // in file order
  std::vector<uint64_t> offsets;                        // of each tensor, from data_offset
  std::vector<ForeignTensor> foreign;                   // only when inspecting; not among the tensors
  uint64_t data_end = 0;                                // where the last tensor ends: the least size of a complete file
};

// Parses bytes (fuzzed). Every count, offset and product is checked against bytes.size() before anything is
// allocated for it. When inspecting, tensor data beyond the end is accepted as empty spans, and so are tensors of
// types that cannot be decoded.
Result<GgufContents> parse_gguf(std::span<const std::byte> bytes, const std::string& where, bool inspecting = false);

// The name of the tensor that holds the factors of a matrix of this name (GgufFile), "" if none can.
std::string gguf_scale_name(std::string_view weight);

// Every part of the split file that path is a part of (-00001-of-0000N.gguf), in order; path alone for any
// other name. Looks at the name only.
std::vector<std::string> gguf_parts(const std::string& path);

// One model: one file or all parts of a split one, mapped. Lookup by name. A tensor 'x.scale' of one F32 for each
// matrix of 'x.weight' is that tensor's TensorView::scale, unless it is what Gemma 4 calls so: the router's gain and
// the factors of experts, ffn_gate_inp.scale and ffn_down_exps.scale.
class GgufFile {
 public:
  // path may be any part of a split file (-00001-of-0000N.gguf); the others are found beside it.
  static Result<GgufFile> open(const std::string& path);

  const std::string& path() const { return path_; }
  const std::vector<std::pair<std::string, GgufValue>>& meta() const { return meta_; }
  const std::vector<TensorView>& tensors() const { return tensors_; }
  const TensorView* find(std::string_view name) const;     // null if absent
  const GgufValue* find_meta(std::string_view key) const;  // null if absent

  // Typed lookups: absent -> Error naming the key; wrong type -> Error with both types.
  Result<int64_t> get_int(std::string_view key) const;
  Result<double> get_float(std::string_view key) const;  // accepts integers
  Result<bool> get_bool(std::string_view key) const;     // accepts integers 0 and 1
  Result<std::string> get_string(std::string_view key) const;
  // Array of n values; a scalar is repeated n times. n = 0: the array as it is.
  Result<std::vector<int64_t>> get_ints(std::string_view key, size_t n) const;
  Result<std::vector<bool>> get_bools(std::string_view key, size_t n) const;
  Result<std::vector<std::string_view>> get_strings(std::string_view key) const;
  uint64_t file_bytes() const { return file_bytes_; }

  // As if these tensors and their bytes were not in the file.
  void leave_out(const std::function<bool(const TensorView&)>& which);

 private:
  void take_scales();
  std::string path_;
  std::vector<MappedFile> maps_;
  std::vector<std::pair<std::string, GgufValue>> meta_;
  std::vector<TensorView> tensors_;
  std::unordered_map<std::string, size_t> by_name_, meta_by_name_;
  uint64_t file_bytes_ = 0;
};

// Writes a GGUF v3 file: add metadata and tensor infos, then begin() writes the header and tensor data
// follows in the order of the infos, streamed in pieces of any size. Padding between tensors is the writer's
// business. A second add() of a key or tensor name is a programmer's error.
class GgufWriter {
 public:
  void add(std::string key, int64_t v, uint32_t gguf_type = 4);  // u32 by default
  void add(std::string key, double v);                           // f32
  void add(std::string key, bool v);
  template <std::integral T>
  requires(!std::same_as<T, bool> && !std::same_as<T, int64_t>) void add(std::string key, T v, uint32_t gguf_type = 4) {
    add(std::move(key), int64_t(v), gguf_type);
  }
  void add(std::string key, std::string v);
  void add(std::string key, const char* v) { add(std::move(key), std::string(v)); }
  void add(std::string key, std::vector<int64_t> v, uint32_t gguf_type = 5);  // i32 array by default
  void add(std::string key, std::vector<double> v);                           // f32 array
  void add(std::string key, std::vector<bool> v);
  void add(std::string key, std::vector<std::string> v);
  void add_raw(std::string key,
               const GgufValue& v);  // a parsed value with its type; honours general.alignment
  void add_tensor(std::string name, DType type, std::vector<int64_t> ne);

  Status begin(const std::string& path);           // creates path + ".part"
  Status write(std::span<const std::byte> bytes);  // the current tensor's next bytes
  Status finish();                                 // checks every byte came; renames over path
  GgufWriter();
  ~GgufWriter();                 // removes an unfinished .part
  uint64_t total_bytes() const;  // of the file, known after the infos

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace facet
