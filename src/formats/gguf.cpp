// GGUF parser. The layout, all little endian:
//
//   "GGUF" | u32 version | i64 n_tensors | i64 n_kv
//   n_kv      x  string key | u32 type | value
//   n_tensors x  string name | u32 n_dims | i64 ne[n_dims] | u32 type | u64 offset (from the data section)
//   padding to general.alignment, then the data section
//
//   string = u64 length + bytes; array = u32 element type | u64 count | elements, never nested
//
// The bytes come from strangers. Every length is compared with what is left of the file before it is used, so
// no allocation is larger than a small multiple of the file, and nothing is read outside it.
#include "formats/gguf.h"

#include <algorithm>
#include <cstring>
#include <unordered_set>

#include "formats/format_error.h"

namespace facet {
namespace {

constexpr uint64_t kMinKvBytes = 8 + 4 + 1;              // empty key, type, one byte
constexpr uint64_t kMinTensorBytes = 8 + 4 + 8 + 4 + 8;  // empty name, n_dims, one dimension, type, offset
constexpr size_t kMaxTensorName = 63;                    // llama.cpp keeps names in 64 bytes with a NUL
constexpr const char* kDownloadAgain = "the file is damaged or incomplete: download it again";
constexpr const char* kConvertAgain = "the file is malformed: convert it again with a current converter";

const char* const kTypeNames[] = {"u8",   "i8",     "u16",   "i16", "u32", "i32", "f32",
                                  "bool", "string", "array", "u64", "i64", "f64"};
constexpr uint32_t kTypeBytes[] = {1, 1, 2, 2, 4, 4, 4, 1, 8, 12, 8, 8, 8};  // least bytes of a value

// Types that this program does not decode: ggml's, and those of ik_llama.cpp (from 133 on), whose blocks have no size
// here.
struct ForeignType {
  uint32_t ggml_id;
  const char* name;
  uint16_t block, block_bytes;
};
constexpr ForeignType kForeignTypes[] = {
    {9, "Q8_1", 32, 36},   {15, "Q8_K", 256, 292}, {34, "TQ1_0", 256, 54}, {35, "TQ2_0", 256, 66},
    {41, "Q1_0", 1, 0},    {133, "Q6_0", 1, 0},    {134, "IQ1_BN", 1, 0},  {135, "IQ2_BN", 1, 0},
    {137, "IQ2_K", 1, 0},  {138, "IQ3_K", 1, 0},   {139, "IQ4_K", 1, 0},   {140, "IQ5_K", 1, 0},
    {141, "IQ6_K", 1, 0},  {144, "IQ4_KS", 1, 0},  {145, "IQ2_KS", 1, 0},  {146, "IQ4_KSS", 1, 0},
    {152, "IQ5_KS", 1, 0}, {153, "IQ2_KT", 1, 0},  {154, "IQ3_KT", 1, 0},  {155, "IQ4_KT", 1, 0},
    {156, "IQ3_KS", 1, 0}, {157, "IQ2_KL", 1, 0},  {158, "IQ1_KT", 1, 0},
};
const ForeignType* foreign_type(uint32_t ggml_id) {
  for (const ForeignType& t : kForeignTypes)
    if (t.ggml_id == ggml_id) return &t;
  return nullptr;
}

template <class T>
T load(const std::byte* p) {
  T v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

// The unread rest of the file. take() is the only way forward.
class Cursor {
 public:
  explicit Cursor(std::span<const std::byte> bytes) : bytes_(bytes) {}
  uint64_t pos() const { return pos_; }
  uint64_t left() const { return bytes_.size() - pos_; }
  const std::byte* take(uint64_t n) {  // null if fewer than n bytes are left
    if (n > left()) return nullptr;
    const std::byte* p = bytes_.data() + pos_;
    pos_ += n;
    return p;
  }
  template <class T>
  bool read(T& v) {
    const std::byte* p = take(sizeof(T));
    if (p) v = load<T>(p);
    return p != nullptr;
  }

 private:
  std::span<const std::byte> bytes_;
  uint64_t pos_ = 0;
};

class Parser {
 public:
  Parser(std::span<const std::byte> bytes, const std::string& where, bool inspecting)
      : in_(bytes), size_(bytes.size()), base_(bytes.data()), where_(where), inspecting_(inspecting) {}

  Result<GgufContents> run() {
    if (Status s = header(); !s) return s.error();
    if (Status s = metadata(); !s) return s.error();
    if (Status s = tensor_infos(); !s) return s.error();
    if (Status s = place_data(); !s) return s.error();
    return std::move(out_);
  }

 private:
  Error cut(std::string_view key, uint64_t need) const {
    return format_error(where_, key, fmt::format("{} bytes at offset {}", need, in_.pos()),
                        fmt::format("{} left in a file of {} bytes", in_.left(), size_), kDownloadAgain);
  }
  Error malformed(std::string_view key, std::string_view expected, std::string_view found) const {
    return format_error(where_, key, expected, found, kConvertAgain);
  }

  Status header();
  Status metadata();
  Status tensor_infos();
  Status tensor_info(uint64_t index);
  Status tensor_type(const std::string& label, uint32_t ggml_id, TensorView& t);
  Status whole_blocks(const std::string& label, const TensorView& t, int block, const char* type) const;
  Status add_foreign(const std::string& label, uint32_t ggml_id, const TensorView& t, uint64_t offset);
  Status read_offset(const std::string& label, uint64_t& offset);
  Status place_data();
  Status place_tensor(size_t i, uint64_t room);
  Status check_overlap() const;
  Status read_string(std::string_view key, std::string_view& s);
  Status read_value(const std::string& key, GgufValue& v);
  Status read_scalar(const std::string& key, GgufValue& v);
  Status read_array(const std::string& key, GgufValue& v);
  Status read_int(std::string_view key, uint32_t type, const std::byte* p, int64_t& v) const;

  Cursor in_;
  uint64_t size_;
  const std::byte* base_;
  std::string where_;
  bool inspecting_;
  uint64_t foreign_end_ = 0;  // where the last of them ends, from the start of the data
  uint64_t n_tensors_ = 0, n_kv_ = 0;
  std::unordered_set<std::string_view> names_;  // views into the file
  GgufContents out_;
};

Status Parser::header() {
  const std::byte* magic = in_.take(4);
  if (!magic) return cut("magic", 4);
  if (std::memcmp(magic, "GGUF", 4) != 0) {
    const auto* m = reinterpret_cast<const unsigned char*>(magic);
    return format_error(where_, "magic", "\"GGUF\" (47 47 55 46)",
                        fmt::format("{:02x} {:02x} {:02x} {:02x}", m[0], m[1], m[2], m[3]), "this is not a GGUF file");
  }
  if (!in_.read(out_.version)) return cut("version", 4);
  if ((out_.version & 0xFFFFu) == 0 && out_.version != 0)
    return format_error(where_, "version", "2 or 3, little endian", fmt::format("{:#010x}, big endian", out_.version),
                        "convert the model to a little-endian file");
  if (out_.version != 2 && out_.version != 3)
    return format_error(where_, "version", "2 or 3", fmt::format("{}", out_.version),
                        out_.version == 1 ? "version 1 is obsolete: convert the model again" : "update this program");
  if (!in_.read(n_tensors_)) return cut("tensor count", 8);
  if (!in_.read(n_kv_)) return cut("metadata count", 8);
  if (n_kv_ > in_.left() / kMinKvBytes)
    return format_error(where_, "metadata count", fmt::format("at most {} in the bytes left", in_.left() / kMinKvBytes),
                        fmt::format("{}", n_kv_), kDownloadAgain);
  if (n_tensors_ > in_.left() / kMinTensorBytes)
    return format_error(where_, "tensor count",
                        fmt::format("at most {} in the bytes left", in_.left() / kMinTensorBytes),
                        fmt::format("{}", n_tensors_), kDownloadAgain);
  return Ok{};
}

Status Parser::read_string(std::string_view key, std::string_view& s) {
  uint64_t n = 0;
  if (!in_.read(n)) return cut(key, 8);
  const std::byte* p = in_.take(n);
  if (!p)
    return format_error(where_, key, fmt::format("a string of at most {} bytes", in_.left()),
                        fmt::format("length {}", n), kDownloadAgain);
  s = {reinterpret_cast<const char*>(p), size_t(n)};
  return Ok{};
}

Status Parser::read_int(std::string_view key, uint32_t type, const std::byte* p, int64_t& v) const {
  switch (type) {
    case gguf_type::kU8:
      v = load<uint8_t>(p);
      break;
    case gguf_type::kI8:
      v = load<int8_t>(p);
      break;
    case gguf_type::kU16:
      v = load<uint16_t>(p);
      break;
    case gguf_type::kI16:
      v = load<int16_t>(p);
      break;
    case gguf_type::kU32:
      v = load<uint32_t>(p);
      break;
    case gguf_type::kI32:
      v = load<int32_t>(p);
      break;
    case gguf_type::kI64:
      v = load<int64_t>(p);
      break;
    default: {  // u64
      const auto u = load<uint64_t>(p);
      if (u > uint64_t(INT64_MAX)) return malformed(key, "an integer below 2^63", fmt::format("{}", u));
      v = int64_t(u);
    }
  }
  return Ok{};
}

Status Parser::read_scalar(const std::string& key, GgufValue& v) {
  if (v.gguf_type == gguf_type::kString) {
    std::string_view s;
    if (Status st = read_string(key, s); !st) return st;
    v.v = s;
    return Ok{};
  }
  const uint32_t n = kTypeBytes[v.gguf_type];
  const std::byte* p = in_.take(n);
  if (!p) return cut(key, n);
  if (v.gguf_type == gguf_type::kF32) {
    v.v = double(load<float>(p));
  } else if (v.gguf_type == gguf_type::kF64) {
    v.v = load<double>(p);
  } else if (v.gguf_type == gguf_type::kBool) {
    if (uint8_t(*p) > 1) return malformed(key, "a bool of 0 or 1", fmt::format("{}", uint8_t(*p)));
    v.v = *p != std::byte{0};
  } else {
    int64_t i = 0;
    if (Status st = read_int(key, v.gguf_type, p, i); !st) return st;
    v.v = i;
  }
  return Ok{};
}

Status Parser::read_array(const std::string& key, GgufValue& v) {
  uint64_t count = 0;
  if (!in_.read(v.gguf_type)) return cut(key, 4);
  if (!in_.read(count)) return cut(key, 8);
  if (v.gguf_type == gguf_type::kArray) return malformed(key, "an array of scalars or strings", "an array of arrays");
  if (v.gguf_type > gguf_type::kF64) return malformed(key, "an element type of 0..12", fmt::format("{}", v.gguf_type));
  const uint32_t each = kTypeBytes[v.gguf_type];
  if (count > in_.left() / each)
    return format_error(where_, key, fmt::format("an array of at most {} elements", in_.left() / each),
                        fmt::format("{} of {}", count, gguf_type_name(v.gguf_type)), kDownloadAgain);
  if (v.gguf_type == gguf_type::kString) {
    std::vector<std::string_view> a(count);
    for (auto& s : a)
      if (Status st = read_string(key, s); !st) return st;
    v.v = std::move(a);
    return Ok{};
  }
  const std::byte* p = in_.take(count * each);
  if (v.gguf_type == gguf_type::kF32 || v.gguf_type == gguf_type::kF64) {
    std::vector<double> a(count);
    const bool narrow = v.gguf_type == gguf_type::kF32;
    for (uint64_t i = 0; i < count; ++i) a[i] = narrow ? double(load<float>(p + 4 * i)) : load<double>(p + 8 * i);
    v.v = std::move(a);
  } else if (v.gguf_type == gguf_type::kBool) {
    std::vector<bool> a(count);
    for (uint64_t i = 0; i < count; ++i) {
      if (uint8_t(p[i]) > 1) return malformed(key, "bools of 0 or 1", fmt::format("{} at index {}", uint8_t(p[i]), i));
      a[i] = p[i] != std::byte{0};
    }
    v.v = std::move(a);
  } else {
    std::vector<int64_t> a(count);
    for (uint64_t i = 0; i < count; ++i)
      if (Status st = read_int(key, v.gguf_type, p + each * i, a[i]); !st) return st;
    v.v = std::move(a);
  }
  return Ok{};
}

Status Parser::read_value(const std::string& key, GgufValue& v) {
  if (!in_.read(v.gguf_type)) return cut(key, 4);
  if (v.gguf_type > gguf_type::kF64) return malformed(key, "a value type of 0..12", fmt::format("{}", v.gguf_type));
  return v.gguf_type == gguf_type::kArray ? read_array(key, v) : read_scalar(key, v);
}

Status Parser::metadata() {
  std::unordered_set<std::string_view> keys;
  out_.meta.reserve(n_kv_);
  for (uint64_t i = 0; i < n_kv_; ++i) {
    std::string_view raw;
    if (Status s = read_string(fmt::format("name of metadata key {} of {}", i + 1, n_kv_), raw); !s) return s;
    const std::string key = fmt::format("key '{}'", printable(raw));
    if (!keys.insert(raw).second) return malformed(key, "one value per key", "the key twice");
    GgufValue v;
    if (Status s = read_value(key, v); !s) return s;
    if (raw == "general.alignment") {
      const auto* a = std::get_if<int64_t>(&v.v);
      if (!a || *a <= 0 || *a > (1 << 30) || (*a & (*a - 1)) != 0)
        return malformed(key, "a power of two of at most 2^30",
                         a ? fmt::format("{}", *a) : std::string(gguf_kind_name(v.kind())));
      out_.alignment = uint64_t(*a);
    }
    out_.meta.emplace_back(raw, std::move(v));
  }
  return Ok{};
}

Status Parser::tensor_type(const std::string& label, uint32_t ggml_id, TensorView& t) {
  const auto type = dtype_from_ggml(ggml_id);
  if (!type) {
    const ForeignType* foreign = foreign_type(ggml_id);
    return format_error(where_, label, "a supported block type",
                        fmt::format("type id {} ({})", ggml_id, foreign ? foreign->name : "unknown"),
                        fmt::format("use a file quantised to {}", kDecodedTypes));
  }
  t.type = *type;
  const DTypeInfo& info = dtype_info(t.type);
  return whole_blocks(label, t, info.block, info.name);
}

Status Parser::whole_blocks(const std::string& label, const TensorView& t, int block, const char* type) const {
  if (t.ne[0] % block != 0)
    return malformed(label, fmt::format("ne[0] to be a multiple of {}, the {} block", block, type),
                     fmt::format("{}", t.ne[0]));
  // Elements times block_bytes must fit with room to spare: the largest block has 8 bytes per element.
  uint64_t n = 1;
  for (int64_t d : t.ne) {
    if (uint64_t(d) > (uint64_t(1) << 59) / n) return malformed(label, "fewer than 2^59 elements", shape_string(t));
    n *= uint64_t(d);
  }
  return Ok{};
}

Status Parser::read_offset(const std::string& label, uint64_t& offset) {
  if (!in_.read(offset)) return cut(label, 8);
  if (offset % out_.alignment != 0)
    return malformed(label, fmt::format("an offset that is a multiple of the alignment {}", out_.alignment),
                     fmt::format("{}", offset));
  return Ok{};
}

// Data of an unknown type is taken to have at least one byte.
Status Parser::add_foreign(const std::string& label, uint32_t ggml_id, const TensorView& t, uint64_t offset) {
  const ForeignType* type = foreign_type(ggml_id);
  const int block = type ? type->block : 1;
  if (Status s = whole_blocks(label, t, block, type ? type->name : "unknown"); !s) return s;
  const uint64_t bytes = type ? uint64_t(t.n_elements()) / type->block * type->block_bytes : 0;
  if (offset > (uint64_t(1) << 62)) return malformed(label, "an offset inside the file", fmt::format("{}", offset));
  foreign_end_ = std::max(foreign_end_, offset + std::max<uint64_t>(bytes, 1));
  out_.foreign.push_back({t.name, ggml_id, t.n_dims, t.ne, bytes});
  return Ok{};
}

Status Parser::tensor_info(uint64_t index) {
  std::string_view name;
  if (Status s = read_string(fmt::format("name of tensor {} of {}", index + 1, n_tensors_), name); !s) return s;
  const std::string label = fmt::format("tensor '{}'", printable(name));
  if (name.size() > kMaxTensorName)
    return malformed(label, fmt::format("a name of at most {} bytes", kMaxTensorName), fmt::format("{}", name.size()));
  if (!names_.insert(name).second) return malformed(label, "one tensor per name", "the name twice");
  TensorView t;
  t.name = std::string(name);
  uint32_t n_dims = 0, ggml_id = 0;
  if (!in_.read(n_dims)) return cut(label, 4);
  if (n_dims < 1 || n_dims > 4) return malformed(label, "1 to 4 dimensions", fmt::format("{}", n_dims));
  t.n_dims = int(n_dims);
  for (uint32_t d = 0; d < n_dims; ++d) {
    if (!in_.read(t.ne[d])) return cut(label, 8);
    if (t.ne[d] <= 0) return malformed(label, fmt::format("ne[{}] > 0", d), fmt::format("{}", t.ne[d]));
  }
  if (!in_.read(ggml_id)) return cut(label, 4);
  uint64_t offset = 0;
  if (inspecting_ && !dtype_from_ggml(ggml_id)) {
    if (Status s = read_offset(label, offset); !s) return s;
    return add_foreign(label, ggml_id, t, offset);
  }
  if (Status s = tensor_type(label, ggml_id, t); !s) return s;
  if (Status s = read_offset(label, offset); !s) return s;
  out_.tensors.push_back(std::move(t));
  out_.offsets.push_back(offset);
  return Ok{};
}

Status Parser::tensor_infos() {
  if (n_tensors_ > in_.left() / kMinTensorBytes)
    return format_error(where_, "tensor count",
                        fmt::format("at most {} in the bytes left", in_.left() / kMinTensorBytes),
                        fmt::format("{}", n_tensors_), kDownloadAgain);
  out_.tensors.reserve(n_tensors_);
  out_.offsets.reserve(n_tensors_);
  for (uint64_t i = 0; i < n_tensors_; ++i)
    if (Status s = tensor_info(i); !s) return s;
  out_.data_offset = (in_.pos() + out_.alignment - 1) / out_.alignment * out_.alignment;
  return Ok{};
}

Status Parser::place_tensor(size_t i, uint64_t room) {
  TensorView& t = out_.tensors[i];
  const uint64_t offset = out_.offsets[i];
  const uint64_t bytes = row_bytes(t.type, t.n_elements());
  const std::string label = fmt::format("tensor '{}'", printable(t.name));
  if (offset > UINT64_MAX - out_.data_offset - bytes)
    return malformed(label, "an offset inside the file", fmt::format("{}", offset));
  const uint64_t end = out_.data_offset + offset + bytes;
  out_.data_end = std::max(out_.data_end, end);
  if (offset <= room && bytes <= room - offset) {
    t.data = {base_ + out_.data_offset + offset, size_t(bytes)};
  } else if (!inspecting_) {
    return format_error(where_, label, fmt::format("{} bytes of data, up to offset {}", bytes, end),
                        fmt::format("a file of {} bytes", size_), kDownloadAgain);
  }
  return Ok{};
}

Status Parser::check_overlap() const {
  std::vector<size_t> order(out_.tensors.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return out_.offsets[a] < out_.offsets[b]; });
  for (size_t k = 1; k < order.size(); ++k) {
    const TensorView &a = out_.tensors[order[k - 1]], &b = out_.tensors[order[k]];
    const uint64_t end = out_.offsets[order[k - 1]] + row_bytes(a.type, a.n_elements());
    if (out_.offsets[order[k]] < end)
      return malformed(fmt::format("tensor '{}'", printable(b.name)),
                       fmt::format("data at or after offset {}, the end of '{}'", end, printable(a.name)),
                       fmt::format("offset {}", out_.offsets[order[k]]));
  }
  return Ok{};
}

Status Parser::place_data() {
  const uint64_t room = size_ > out_.data_offset ? size_ - out_.data_offset : 0;
  out_.data_end = in_.pos();
  if (foreign_end_ > 0) out_.data_end = std::max(out_.data_end, out_.data_offset + foreign_end_);
  for (size_t i = 0; i < out_.tensors.size(); ++i)
    if (Status s = place_tensor(i, room); !s) return s;
  return check_overlap();
}

}  // namespace

const char* gguf_kind_name(GgufValue::Kind k) {
  static constexpr const char* kNames[] = {"integer",          "float",          "bool",          "string",
                                           "array of integer", "array of float", "array of bool", "array of string"};
  return kNames[size_t(k)];
}

const char* gguf_type_name(uint32_t type) { return type < std::size(kTypeNames) ? kTypeNames[type] : "unknown"; }

std::string foreign_type_name(uint32_t ggml_id) {
  const ForeignType* t = foreign_type(ggml_id);
  return t ? t->name : fmt::format("type {}", ggml_id);
}

Result<GgufContents> parse_gguf(std::span<const std::byte> bytes, const std::string& where, bool inspecting) {
  return Parser(bytes, where, inspecting).run();
}

}  // namespace facet
