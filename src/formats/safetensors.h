#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/mmap.h"
#include "base/result.h"
#include "formats/dtype.h"

// Hugging Face safetensors: u64 header length, a JSON header, tensor data.
namespace facet {

// What one file says; views point into the bytes that were parsed. ne is the reverse of the shape in the
// file, so that ne[0] is contiguous as everywhere else. A tensor without dimensions has n_dims 0 and one
// element.
struct SafetensorsContents {
  std::vector<std::pair<std::string, std::string>> metadata;  // __metadata__
  std::vector<TensorView> tensors;                            // sorted by name
  uint64_t data_offset = 0;                                   // from the start of the file
  uint64_t data_end = 0;                                      // where the last tensor ends
};

// Parses bytes (fuzzed). With allow_truncated, data beyond the end is accepted as empty spans (for inspect).
Result<SafetensorsContents> parse_safetensors(std::span<const std::byte> bytes, const std::string& where,
                                              bool allow_truncated = false);

// Which file each tensor is in: the weight_map of model.safetensors.index.json (fuzzed). File names are plain
// names, never paths.
Result<std::vector<std::pair<std::string, std::string>>> parse_safetensors_index(std::span<const std::byte> bytes,
                                                                                 const std::string& where);

// The files of a checkpoint: path is a .safetensors file, an index .json, or a folder that holds either
// model.safetensors.index.json or model.safetensors. Missing shards are not noticed here.
Result<std::vector<std::string>> safetensors_parts(const std::string& path);

// One checkpoint, all its files mapped. Lookup by name.
class SafetensorsFile {
 public:
  static Result<SafetensorsFile> open(const std::string& path);  // as safetensors_parts

  const std::string& path() const { return path_; }
  const std::vector<TensorView>& tensors() const { return tensors_; }
  const std::vector<std::pair<std::string, std::string>>& metadata() const { return metadata_; }
  const TensorView* find(std::string_view name) const;  // null if absent
  uint64_t file_bytes() const { return file_bytes_; }

 private:
  std::string path_;
  std::vector<MappedFile> maps_;
  std::vector<TensorView> tensors_;
  std::vector<std::pair<std::string, std::string>> metadata_;  // of the first file
  std::unordered_map<std::string, size_t> by_name_;
  uint64_t file_bytes_ = 0;
};

}  // namespace facet
