// safetensors parser. The layout:
//
//   u64 n | n bytes of JSON | tensor data
//   {"name": {"dtype": "BF16", "shape": [rows, cols], "data_offsets": [begin, end]}, ..., "__metadata__":
//   {...}}
//
// Offsets count from the end of the JSON. The bytes come from strangers: the header length is compared with
// the file before anything is read, and every tensor with the data that is there.
#include "formats/safetensors.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "formats/format_error.h"

namespace facet {
namespace {

using nlohmann::json;

constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the limit of the reference implementation
constexpr int kMaxDepth = 8;                       // real headers have 3
constexpr const char* kDownloadAgain = "the file is damaged or incomplete: download it again";
constexpr const char* kMalformed = "the file is malformed: write it again with the safetensors library";

// Parses text without exceptions. Refuses what the library accepts silently: duplicate keys and deep nesting.
std::optional<json> parse_json(std::string_view text, std::string& problem) {
  std::vector<std::set<std::string>> keys;  // of the objects that are open
  const auto watch = [&](int depth, json::parse_event_t event, json& parsed) {
    if (depth > kMaxDepth) problem = "deeper nesting";
    if (event == json::parse_event_t::object_start) keys.emplace_back();
    if (event == json::parse_event_t::object_end && !keys.empty()) keys.pop_back();
    if (event == json::parse_event_t::key && !keys.empty() &&
        !keys.back().insert(parsed.get_ref<std::string&>()).second)
      problem = fmt::format("the key '{}' twice", printable(parsed.get_ref<std::string&>()));
    return problem.empty();
  };
  json j = json::parse(text.begin(), text.end(), watch, /*allow_exceptions=*/false);
  if (problem.empty() && j.is_discarded()) problem = "text that is not JSON";
  if (problem.empty() && !j.is_object()) problem = "JSON that is not an object";
  return problem.empty() ? std::optional(std::move(j)) : std::nullopt;
}

std::optional<DType> dtype_of(std::string_view name) {
  static constexpr std::pair<std::string_view, DType> kTypes[] = {
      {"F32", DType::kF32}, {"F16", DType::kF16}, {"BF16", DType::kBF16}, {"F64", DType::kF64},
      {"I64", DType::kI64}, {"I32", DType::kI32}, {"I16", DType::kI16},   {"I8", DType::kI8}};
  for (const auto& [n, t] : kTypes)
    if (n == name) return t;
  return std::nullopt;
}

class Parser {
 public:
  Parser(std::span<const std::byte> bytes, const std::string& where, bool allow_truncated)
      : bytes_(bytes), where_(where), allow_truncated_(allow_truncated) {}
  Result<SafetensorsContents> run();

 private:
  Error malformed(std::string_view key, std::string_view expected, std::string_view found) const {
    return format_error(where_, key, expected, found, kMalformed);
  }
  Status metadata(const json& j);
  Status tensor(const std::string& name, const json& j);
  Status shape(const std::string& label, const json& j, TensorView& t);
  Status place(const std::string& label, const json& j, TensorView& t);
  Status check_overlap();

  std::span<const std::byte> bytes_;
  std::string where_;
  bool allow_truncated_;
  std::vector<std::pair<uint64_t, uint64_t>> ranges_;  // of out_.tensors, within the data
  SafetensorsContents out_;
};

Result<SafetensorsContents> Parser::run() {
  if (bytes_.size() < 8)
    return format_error(where_, "header length", "8 bytes", fmt::format("a file of {} bytes", bytes_.size()),
                        kDownloadAgain);
  uint64_t n = 0;
  std::memcpy(&n, bytes_.data(), sizeof n);
  const uint64_t limit = std::min<uint64_t>(bytes_.size() - 8, kMaxHeaderBytes);
  if (n > limit)
    return format_error(where_, "header length", fmt::format("at most {} bytes", limit), fmt::format("{}", n),
                        n > kMaxHeaderBytes ? "this is not a safetensors file" : kDownloadAgain);
  out_.data_offset = out_.data_end = 8 + n;
  std::string problem;
  const auto header = parse_json({reinterpret_cast<const char*>(bytes_.data()) + 8, size_t(n)}, problem);
  if (!header) return malformed("header", "a JSON object without duplicate keys", problem);
  for (const auto& [name, value] : header->items()) {
    Status s = name == "__metadata__" ? metadata(value) : tensor(name, value);
    if (!s) return s.error();
  }
  if (Status s = check_overlap(); !s) return s.error();
  return std::move(out_);
}

Status Parser::metadata(const json& j) {
  if (!j.is_object()) return malformed("__metadata__", "an object of strings", j.type_name());
  for (const auto& [key, value] : j.items()) {
    if (!value.is_string())
      return malformed(fmt::format("__metadata__ key '{}'", printable(key)), "string", value.type_name());
    out_.metadata.emplace_back(key, value.get_ref<const std::string&>());
  }
  return Ok{};
}

Status Parser::shape(const std::string& label, const json& j, TensorView& t) {
  const auto it = j.find("shape");
  if (it == j.end() || !it->is_array())
    return malformed(label, "'shape', an array", it == j.end() ? "none" : it->type_name());
  if (it->size() > 4) return malformed(label, "at most 4 dimensions", fmt::format("{}", it->size()));
  t.n_dims = int(it->size());
  const uint64_t most = uint64_t(1) << 59;  // times 8 bytes stays far from overflow
  uint64_t elements = 1;
  for (int d = 0; d < t.n_dims; ++d) {
    const json& v = (*it)[size_t(d)];
    if (!v.is_number_unsigned() || v.get<uint64_t>() == 0)
      return malformed(
          label, "dimensions that are positive integers",
          fmt::format("{} at index {}", printable(v.dump(-1, ' ', true, json::error_handler_t::replace)), d));
    const uint64_t n = v.get<uint64_t>();
    if (n > most / elements)
      return malformed(label, "fewer than 2^59 elements", fmt::format("dimension {} of {}", d, n));
    elements *= n;
    t.ne[size_t(t.n_dims - 1 - d)] = int64_t(n);
  }
  return Ok{};
}

Status Parser::place(const std::string& label, const json& j, TensorView& t) {
  const auto it = j.find("data_offsets");
  if (it == j.end() || !it->is_array() || it->size() != 2 || !(*it)[0].is_number_unsigned() ||
      !(*it)[1].is_number_unsigned())
    return malformed(label, "'data_offsets' of two integers",
                     it == j.end() ? "none" : printable(it->dump(-1, ' ', true, json::error_handler_t::replace)));
  const uint64_t begin = (*it)[0].get<uint64_t>(), end = (*it)[1].get<uint64_t>();
  const uint64_t bytes = row_bytes(t.type, t.n_elements());
  if (end < begin || end - begin != bytes)
    return malformed(label, fmt::format("{} bytes of data for {} {}", bytes, dtype_name(t.type), shape_string(t)),
                     fmt::format("data_offsets {}..{}", begin, end));
  const uint64_t room = bytes_.size() - out_.data_offset;
  if (end > UINT64_MAX - out_.data_offset)
    return malformed(label, "data inside the file", fmt::format("offset {}", end));
  out_.data_end = std::max(out_.data_end, out_.data_offset + end);
  if (end <= room) {
    t.data = bytes_.subspan(size_t(out_.data_offset + begin), size_t(bytes));
  } else if (!allow_truncated_) {
    return format_error(where_, label, fmt::format("data up to offset {}", out_.data_offset + end),
                        fmt::format("a file of {} bytes", bytes_.size()), kDownloadAgain);
  }
  ranges_.emplace_back(begin, end);
  return Ok{};
}

Status Parser::tensor(const std::string& name, const json& j) {
  const std::string label = fmt::format("tensor '{}'", printable(name));
  if (!j.is_object()) return malformed(label, "an object", j.type_name());
  const auto it = j.find("dtype");
  if (it == j.end() || !it->is_string())
    return malformed(label, "'dtype', a string", it == j.end() ? "none" : it->type_name());
  const auto& dtype = it->get_ref<const std::string&>();
  TensorView t;
  t.name = name;
  const auto type = dtype_of(dtype);
  if (!type)
    return format_error(where_, label, "dtype F32, F16, BF16, F64, I64, I32, I16 or I8",
                        fmt::format("'{}'", printable(dtype)), "use a checkpoint in BF16, F16 or F32");
  t.type = *type;
  if (Status s = shape(label, j, t); !s) return s;
  if (Status s = place(label, j, t); !s) return s;
  out_.tensors.push_back(std::move(t));
  return Ok{};
}

Status Parser::check_overlap() {
  std::vector<size_t> order(ranges_.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return ranges_[a] < ranges_[b]; });
  for (size_t k = 1; k < order.size(); ++k) {
    const auto &a = ranges_[order[k - 1]], &b = ranges_[order[k]];
    if (b.first < a.second)
      return malformed(fmt::format("tensor '{}'", printable(out_.tensors[order[k]].name)),
                       fmt::format("data at or after offset {}, the end of '{}'", a.second,
                                   printable(out_.tensors[order[k - 1]].name)),
                       fmt::format("offset {}", b.first));
  }
  return Ok{};
}

}  // namespace

Result<SafetensorsContents> parse_safetensors(std::span<const std::byte> bytes, const std::string& where,
                                              bool allow_truncated) {
  return Parser(bytes, where, allow_truncated).run();
}

Result<std::vector<std::pair<std::string, std::string>>> parse_safetensors_index(std::span<const std::byte> bytes,
                                                                                 const std::string& where) {
  if (bytes.size() > kMaxHeaderBytes)
    return format_error(where, "index", fmt::format("at most {} bytes", kMaxHeaderBytes),
                        fmt::format("{}", bytes.size()), "this is not an index of safetensors files");
  std::string problem;
  const auto j = parse_json({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, problem);
  if (!j) return format_error(where, "index", "a JSON object without duplicate keys", problem, kDownloadAgain);
  const auto map = j->find("weight_map");
  if (map == j->end() || !map->is_object())
    return format_error(where, "key 'weight_map'", "an object", map == j->end() ? "none" : map->type_name(),
                        kDownloadAgain);
  std::vector<std::pair<std::string, std::string>> out;
  for (const auto& [name, file] : map->items()) {
    const std::string label = fmt::format("weight_map of '{}'", printable(name));
    if (!file.is_string()) return format_error(where, label, "a file name", file.type_name(), kMalformed);
    const auto& f = file.get_ref<const std::string&>();
    if (f.empty() || f == "." || f == ".." || f.find('/') != f.npos || f.find('\0') != f.npos)
      return format_error(where, label, "a plain file name", fmt::format("'{}'", printable(f)), kMalformed);
    out.emplace_back(name, f);
  }
  return out;
}

namespace {

namespace fs = std::filesystem;

constexpr const char* kIndexName = "model.safetensors.index.json";
constexpr const char* kSingleName = "model.safetensors";

bool is_there(const fs::path& p) {
  std::error_code ec;
  return fs::exists(p, ec);
}

bool is_index(const std::string& path) { return path.size() > 5 && path.ends_with(".json"); }

// The file that path means: itself, or the index or single file in the folder.
Result<std::string> entry_of(const std::string& path) {
  std::error_code ec;
  if (!fs::is_directory(path, ec)) return path;
  for (const char* name : {kIndexName, kSingleName})
    if (is_there(fs::path(path) / name)) return (fs::path(path) / name).string();
  return Error{path, fmt::format("expected {} or {} in the folder, found neither", kIndexName, kSingleName),
               "give the folder of a Hugging Face checkpoint"};
}

Result<std::vector<std::pair<std::string, std::string>>> read_index(const std::string& path) {
  auto map = MappedFile::open(path);
  if (!map) return map.error();
  return parse_safetensors_index(map->bytes(), path);
}

std::vector<std::string> files_of(const std::string& index,
                                  const std::vector<std::pair<std::string, std::string>>& weight_map) {
  std::set<std::string> names;
  for (const auto& [tensor, file] : weight_map) names.insert(file);
  std::vector<std::string> out;
  for (const auto& n : names) out.push_back((fs::path(index).parent_path() / n).string());
  return out;
}

}  // namespace

Result<std::vector<std::string>> safetensors_parts(const std::string& path) {
  auto entry = entry_of(path);
  if (!entry) return entry.error();
  if (!is_index(*entry)) return std::vector<std::string>{*entry};
  auto weight_map = read_index(*entry);
  if (!weight_map) return weight_map.error();
  return files_of(*entry, *weight_map);
}

Result<SafetensorsFile> SafetensorsFile::open(const std::string& path) {
  auto entry = entry_of(path);
  if (!entry) return entry.error();
  std::vector<std::pair<std::string, std::string>> weight_map;
  std::vector<std::string> files{*entry};
  if (is_index(*entry)) {
    auto read = read_index(*entry);
    if (!read) return read.error();
    weight_map = std::move(*read);
    files = files_of(*entry, weight_map);
  }
  SafetensorsFile f;
  f.path_ = path;
  std::unordered_map<std::string, std::string> home;  // file name of each tensor
  for (const std::string& file : files) {
    auto map = MappedFile::open(file);
    if (!map) return map.error();
    auto contents = parse_safetensors(map->bytes(), file);
    if (!contents) return contents.error();
    if (f.maps_.empty()) f.metadata_ = std::move(contents->metadata);
    for (TensorView& t : contents->tensors) {
      home[t.name] = fs::path(file).filename().string();
      if (!f.by_name_.emplace(t.name, f.tensors_.size()).second)
        return format_error(file, fmt::format("tensor '{}'", printable(t.name)), "one tensor per name",
                            "it in two files", kMalformed);
      f.tensors_.push_back(std::move(t));
    }
    f.file_bytes_ += map->bytes().size();
    f.maps_.push_back(std::move(*map));
  }
  for (const auto& [tensor, file] : weight_map)
    if (const auto it = home.find(tensor); it == home.end() || it->second != file)
      return format_error(*entry, fmt::format("weight_map of '{}'", printable(tensor)), fmt::format("it in {}", file),
                          it == home.end() ? "it in no file" : fmt::format("it in {}", it->second), kDownloadAgain);
  return f;
}

const TensorView* SafetensorsFile::find(std::string_view name) const {
  const auto it = by_name_.find(std::string(name));
  return it == by_name_.end() ? nullptr : &tensors_[it->second];
}

}  // namespace facet
