// A GGUF model on disk: one file, or the parts of a split one beside each other. Lookup of tensors and
// metadata.
#include <fmt/format.h>

#include <charconv>
#include <cstring>
#include <optional>

#include "formats/format_error.h"
#include "formats/gguf.h"

namespace facet {
namespace {

constexpr const char* kFetchParts = "put all parts of the split model in one folder, from one download";
constexpr const char* kWrongFile = "check that this is the right model file, or convert it again";

// <base>-00002-of-00003.gguf
struct SplitName {
  std::string base;
  int no = 0, count = 0;  // no is 1-based, as in the name

  std::string part(int i) const { return fmt::format("{}-{:05d}-of-{:05d}.gguf", base, i, count); }
};

std::optional<SplitName> split_name(const std::string& path) {
  constexpr size_t kTail = sizeof("-00001-of-00001.gguf") - 1;
  if (path.size() <= kTail) return std::nullopt;
  const std::string_view tail = std::string_view(path).substr(path.size() - kTail);
  if (tail[0] != '-' || tail.substr(6, 4) != "-of-" || tail.substr(15) != ".gguf") return std::nullopt;
  SplitName s;
  s.base = path.substr(0, path.size() - kTail);
  const auto number = [&](size_t at, int& v) {
    const char* p = tail.data() + at;
    return std::from_chars(p, p + 5, v).ptr == p + 5;
  };
  if (!number(1, s.no) || !number(10, s.count) || s.no < 1 || s.count < s.no) return std::nullopt;
  return s;
}

const GgufValue* find_in(const GgufContents& c, std::string_view key) {
  for (const auto& [k, v] : c.meta)
    if (k == key) return &v;
  return nullptr;
}

// The integer value of key; none if it is absent or of another type.
std::optional<int64_t> int_in(const GgufContents& c, std::string_view key) {
  const GgufValue* v = find_in(c, key);
  const int64_t* i = v ? std::get_if<int64_t>(&v->v) : nullptr;
  return i ? std::optional(*i) : std::nullopt;
}

std::string shown(std::optional<int64_t> v) { return v ? fmt::format("{}", *v) : "no such integer"; }

// What the keys of one part say against its name. A file that is named as a part must be one, and the
// reverse.
Status check_part(const std::string& path, const GgufContents& c, const std::optional<SplitName>& name, int no) {
  const auto count = int_in(c, "split.count"), index = int_in(c, "split.no");
  if (!name) {
    if (count.value_or(1) <= 1) return Ok{};
    return format_error(path, "file name", fmt::format("<base>-%05d-of-{:05d}.gguf, as split.count says", *count), path,
                        "give the part its original name");
  }
  if (name->count == 1 && !count) return Ok{};
  if (count != name->count)
    return format_error(path, "key 'split.count'", fmt::format("{}, as the file name says", name->count), shown(count),
                        kFetchParts);
  if (index != no - 1)
    return format_error(path, "key 'split.no'", fmt::format("{}, as the file name says", no - 1), shown(index),
                        kFetchParts);
  return Ok{};
}

}  // namespace

std::string gguf_scale_name(std::string_view weight) {
  constexpr std::string_view kWeight = ".weight";
  if (!weight.ends_with(kWeight)) return {};
  const std::string_view base = weight.substr(0, weight.size() - kWeight.size());
  if (base.ends_with("ffn_gate_inp") || base.ends_with("ffn_down_exps")) return {};
  return std::string(base) + ".scale";
}

std::vector<std::string> gguf_parts(const std::string& path) {
  const auto name = split_name(path);
  if (!name) return {path};
  std::vector<std::string> parts;
  for (int i = 1; i <= name->count; ++i) parts.push_back(name->part(i));
  return parts;
}

Result<GgufFile> GgufFile::open(const std::string& path) {
  GgufFile f;
  f.path_ = path;
  const auto name = split_name(path);
  const int n_parts = name ? name->count : 1;
  std::optional<int64_t> expected_tensors;
  for (int no = 1; no <= n_parts; ++no) {
    const std::string part = name ? name->part(no) : path;
    auto map = MappedFile::open(part);
    if (!map) {
      if (n_parts == 1) return map.error();
      return Error{part, fmt::format("part {} of {} is missing; {}", no, n_parts, map.error().what), kFetchParts};
    }
    auto contents = parse_gguf(map->bytes(), part);
    if (!contents) return contents.error();
    if (Status s = check_part(part, *contents, name, no); !s) return s.error();
    if (no == 1) {
      if (n_parts > 1) expected_tensors = int_in(*contents, "split.tensors.count");
      f.meta_ = std::move(contents->meta);
    }
    for (TensorView& t : contents->tensors) {
      if (!f.by_name_.emplace(t.name, f.tensors_.size()).second)
        return format_error(part, fmt::format("tensor '{}'", printable(t.name)), "one tensor per name",
                            "it in two parts", kFetchParts);
      f.tensors_.push_back(std::move(t));
    }
    f.file_bytes_ += map->bytes().size();
    f.maps_.push_back(std::move(*map));
  }
  if (expected_tensors && *expected_tensors != int64_t(f.tensors_.size()))
    return format_error(path, "key 'split.tensors.count'", fmt::format("{} tensors in all parts", *expected_tensors),
                        fmt::format("{}", f.tensors_.size()), kFetchParts);
  for (size_t i = 0; i < f.meta_.size(); ++i) f.meta_by_name_.emplace(f.meta_[i].first, i);
  f.take_scales();
  return f;
}

void GgufFile::take_scales() {
  for (TensorView& t : tensors_) {
    const std::string name = t.n_dims < 2 ? std::string() : gguf_scale_name(t.name);
    const TensorView* scale = name.empty() ? nullptr : find(name);
    if (!scale || scale->type != DType::kF32 || scale->n_elements() != t.ne[2])
      continue;  // the model's binding says so
    t.scale.resize(size_t(t.ne[2]));
    std::memcpy(t.scale.data(), scale->data.data(), scale->data.size());
  }
}

void GgufFile::leave_out(const std::function<bool(const TensorView&)>& which) {
  std::vector<TensorView> kept;
  for (TensorView& t : tensors_)
    if (which(t))
      file_bytes_ -= t.data.size();
    else
      kept.push_back(std::move(t));
  tensors_ = std::move(kept);
  by_name_.clear();
  for (size_t i = 0; i < tensors_.size(); ++i) by_name_.emplace(tensors_[i].name, i);
}

const TensorView* GgufFile::find(std::string_view name) const {
  const auto it = by_name_.find(std::string(name));
  return it == by_name_.end() ? nullptr : &tensors_[it->second];
}

const GgufValue* GgufFile::find_meta(std::string_view key) const {
  const auto it = meta_by_name_.find(std::string(key));
  return it == meta_by_name_.end() ? nullptr : &meta_[it->second].second;
}

namespace {

Error absent(const GgufFile& f, std::string_view key, std::string_view expected) {
  return format_error(f.path(), fmt::format("key '{}'", key), expected, "no such key", kWrongFile);
}
Error wrong_kind(const GgufFile& f, std::string_view key, std::string_view expected, const GgufValue& v) {
  return format_error(f.path(), fmt::format("key '{}'", key), expected, gguf_kind_name(v.kind()), kWrongFile);
}

// An array of T, or a scalar repeated n times (once for n = 0), of n elements unless n = 0.
template <class T>
Result<std::vector<T>> get_array(const GgufFile& f, std::string_view key, size_t n, std::string_view expected) {
  const GgufValue* v = f.find_meta(key);
  if (!v) return absent(f, key, expected);
  if (const T* one = std::get_if<T>(&v->v)) return std::vector<T>(n ? n : 1, *one);
  const auto* a = std::get_if<std::vector<T>>(&v->v);
  if (!a) return wrong_kind(f, key, expected, *v);
  if (n && a->size() != n)
    return format_error(f.path(), fmt::format("key '{}'", key), fmt::format("{} elements", n),
                        fmt::format("{}", a->size()), kWrongFile);
  return *a;
}

}  // namespace

Result<int64_t> GgufFile::get_int(std::string_view key) const {
  const GgufValue* v = find_meta(key);
  if (!v) return absent(*this, key, "integer");
  if (const auto* i = std::get_if<int64_t>(&v->v)) return *i;
  return wrong_kind(*this, key, "integer", *v);
}

Result<double> GgufFile::get_float(std::string_view key) const {
  const GgufValue* v = find_meta(key);
  if (!v) return absent(*this, key, "float");
  if (const auto* d = std::get_if<double>(&v->v)) return *d;
  if (const auto* i = std::get_if<int64_t>(&v->v)) return double(*i);
  return wrong_kind(*this, key, "float", *v);
}

Result<bool> GgufFile::get_bool(std::string_view key) const {
  const GgufValue* v = find_meta(key);
  if (!v) return absent(*this, key, "bool");
  if (const auto* b = std::get_if<bool>(&v->v)) return *b;
  const auto* i = std::get_if<int64_t>(&v->v);
  if (!i) return wrong_kind(*this, key, "bool", *v);
  if (*i != 0 && *i != 1)
    return format_error(path_, fmt::format("key '{}'", key), "bool, or 0 or 1", fmt::format("{}", *i), kWrongFile);
  return *i == 1;
}

Result<std::string> GgufFile::get_string(std::string_view key) const {
  const GgufValue* v = find_meta(key);
  if (!v) return absent(*this, key, "string");
  if (const auto* s = std::get_if<std::string_view>(&v->v)) return std::string(*s);
  return wrong_kind(*this, key, "string", *v);
}

Result<std::vector<int64_t>> GgufFile::get_ints(std::string_view key, size_t n) const {
  return get_array<int64_t>(*this, key, n, "array of integer, or one integer");
}

Result<std::vector<bool>> GgufFile::get_bools(std::string_view key, size_t n) const {
  return get_array<bool>(*this, key, n, "array of bool, or one bool");
}

Result<std::vector<std::string_view>> GgufFile::get_strings(std::string_view key) const {
  const GgufValue* v = find_meta(key);
  if (!v) return absent(*this, key, "array of string");
  if (const auto* a = std::get_if<std::vector<std::string_view>>(&v->v)) return *a;
  return wrong_kind(*this, key, "array of string", *v);
}

}  // namespace facet
