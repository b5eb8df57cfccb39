// Writes GGUF v3: metadata and tensor infos are serialised as they are added, data is streamed.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <unordered_set>
#include <utility>

#include "base/check.h"
#include "base/files.h"
#include "formats/gguf.h"

namespace facet {

struct GgufWriter::Impl {
  struct Info {
    std::string name;
    DType type;
    std::vector<int64_t> ne;
    uint64_t bytes;
  };
  std::vector<std::byte> kv;  // serialised metadata
  std::unordered_set<std::string> keys, names;
  std::vector<Info> infos;
  uint64_t n_kv = 0, alignment = 32;
  OutputFile file;
  std::vector<std::byte> pending;  // small writes on their way to the file
  size_t current = 0;              // tensor being written
  uint64_t done = 0;               // bytes of it

  uint64_t padding(uint64_t at) const { return (alignment - at % alignment) % alignment; }
  std::vector<std::byte> header() const;
  Status flush();
  Status put(std::span<const std::byte> bytes);
  Status end_tensor();
};

namespace {

constexpr size_t kPendingBytes = size_t(1) << 20;

template <class T>
void put_pod(std::vector<std::byte>& out, T v) {
  const size_t at = out.size();
  out.resize(at + sizeof v);
  std::memcpy(out.data() + at, &v, sizeof v);
}

void put_string(std::vector<std::byte>& out, std::string_view s) {
  put_pod(out, uint64_t(s.size()));
  const auto* p = reinterpret_cast<const std::byte*>(s.data());
  out.insert(out.end(), p, p + s.size());
}

template <class T>
void put_narrow(std::vector<std::byte>& out, int64_t v) {
  CHECK(std::in_range<T>(v), "{} does not fit the metadata type", v);
  put_pod(out, T(v));
}

void put_int(std::vector<std::byte>& out, int64_t v, uint32_t type) {
  switch (type) {
    case gguf_type::kU8:
      put_narrow<uint8_t>(out, v);
      return;
    case gguf_type::kI8:
      put_narrow<int8_t>(out, v);
      return;
    case gguf_type::kU16:
      put_narrow<uint16_t>(out, v);
      return;
    case gguf_type::kI16:
      put_narrow<int16_t>(out, v);
      return;
    case gguf_type::kU32:
      put_narrow<uint32_t>(out, v);
      return;
    case gguf_type::kI32:
      put_narrow<int32_t>(out, v);
      return;
    case gguf_type::kU64:
      put_narrow<uint64_t>(out, v);
      return;
    case gguf_type::kI64:
      put_pod(out, v);
      return;
    default:
      CHECK(false, "{} is not an integer type", type);
  }
}

void put_float(std::vector<std::byte>& out, double v, uint32_t type) {
  if (type == gguf_type::kF64) return put_pod(out, v);
  CHECK(type == gguf_type::kF32, "{} is not a float type", type);
  put_pod(out, float(v));
}

// One value of a scalar or array, by the C++ type it was parsed to.
void put_element(std::vector<std::byte>& out, int64_t v, uint32_t type) { put_int(out, v, type); }
void put_element(std::vector<std::byte>& out, double v, uint32_t type) { put_float(out, v, type); }
void put_element(std::vector<std::byte>& out, bool v, uint32_t) { put_pod(out, uint8_t(v)); }
void put_element(std::vector<std::byte>& out, std::string_view v, uint32_t) { put_string(out, v); }

template <class T>
constexpr bool kIsVector = false;
template <class T>
constexpr bool kIsVector<std::vector<T>> = true;

GgufValue value_of(auto v, uint32_t type) {
  GgufValue g;
  g.v = std::move(v);
  g.gguf_type = type;
  return g;
}

}  // namespace

GgufWriter::GgufWriter() : impl_(std::make_unique<Impl>()) {}

GgufWriter::~GgufWriter() = default;

void GgufWriter::add_raw(std::string key, const GgufValue& v) {
  Impl& w = *impl_;
  CHECK(!w.file.is_open(), "metadata after begin()");
  CHECK(w.keys.insert(key).second, "key {} added twice", key);
  put_string(w.kv, key);
  ++w.n_kv;
  std::visit(
      [&](const auto& x) {
        if constexpr (kIsVector<std::decay_t<decltype(x)>>) {
          put_pod(w.kv, gguf_type::kArray);
          put_pod(w.kv, v.gguf_type);
          put_pod(w.kv, uint64_t(x.size()));
          for (size_t i = 0; i < x.size(); ++i) put_element(w.kv, x[i], v.gguf_type);
        } else {
          put_pod(w.kv, v.gguf_type);
          put_element(w.kv, x, v.gguf_type);
        }
      },
      v.v);
  if (key == "general.alignment") {
    const auto* a = std::get_if<int64_t>(&v.v);
    CHECK(a && *a > 0 && (*a & (*a - 1)) == 0, "general.alignment must be a power of two");
    w.alignment = uint64_t(*a);
  }
}

void GgufWriter::add(std::string key, int64_t v, uint32_t type) { add_raw(std::move(key), value_of(v, type)); }
void GgufWriter::add(std::string key, double v) { add_raw(std::move(key), value_of(v, gguf_type::kF32)); }
void GgufWriter::add(std::string key, bool v) { add_raw(std::move(key), value_of(v, gguf_type::kBool)); }
void GgufWriter::add(std::string key, std::string v) {
  add_raw(std::move(key), value_of(std::string_view(v), gguf_type::kString));
}
void GgufWriter::add(std::string key, std::vector<int64_t> v, uint32_t type) {
  add_raw(std::move(key), value_of(std::move(v), type));
}
void GgufWriter::add(std::string key, std::vector<double> v) {
  add_raw(std::move(key), value_of(std::move(v), gguf_type::kF32));
}
void GgufWriter::add(std::string key, std::vector<bool> v) {
  add_raw(std::move(key), value_of(std::move(v), gguf_type::kBool));
}
void GgufWriter::add(std::string key, std::vector<std::string> v) {
  add_raw(std::move(key), value_of(std::vector<std::string_view>(v.begin(), v.end()), gguf_type::kString));
}

void GgufWriter::add_tensor(std::string name, DType type, std::vector<int64_t> ne) {
  Impl& w = *impl_;
  CHECK(!w.file.is_open(), "tensor {} after begin()", name);
  CHECK(!ne.empty() && ne.size() <= 4, "tensor {} has {} dimensions", name, ne.size());
  CHECK(w.names.insert(name).second, "tensor {} added twice", name);
  CHECK(ne[0] % dtype_info(type).block == 0, "tensor {}: ne[0] {} is no multiple of the {} block", name, ne[0],
        dtype_name(type));
  int64_t n = 1;
  for (int64_t d : ne) n *= d;
  w.infos.push_back({std::move(name), type, std::move(ne), row_bytes(type, n)});
}

std::vector<std::byte> GgufWriter::Impl::header() const {
  std::vector<std::byte> h;
  for (char c : {'G', 'G', 'U', 'F'}) put_pod(h, c);
  put_pod(h, uint32_t(3));
  put_pod(h, uint64_t(infos.size()));
  put_pod(h, n_kv);
  h.insert(h.end(), kv.begin(), kv.end());
  uint64_t offset = 0;
  for (const Info& t : infos) {
    put_string(h, t.name);
    put_pod(h, uint32_t(t.ne.size()));
    for (int64_t d : t.ne) put_pod(h, d);
    put_pod(h, dtype_info(t.type).ggml_id);
    put_pod(h, offset);
    offset += t.bytes + padding(t.bytes);
  }
  h.resize(h.size() + padding(h.size()));
  return h;
}

uint64_t GgufWriter::total_bytes() const {
  uint64_t n = impl_->header().size();
  for (const Impl::Info& t : impl_->infos) n += t.bytes + impl_->padding(t.bytes);
  return n;
}

Status GgufWriter::Impl::flush() {
  Status s = file.write(std::span<const std::byte>(pending));
  pending.clear();
  return s;
}

Status GgufWriter::Impl::put(std::span<const std::byte> bytes) {
  if (pending.size() + bytes.size() > kPendingBytes)
    if (Status s = flush(); !s) return s;
  if (bytes.size() > kPendingBytes) return file.write(bytes);
  pending.insert(pending.end(), bytes.begin(), bytes.end());
  return Ok{};
}

Status GgufWriter::begin(const std::string& path) {
  Impl& w = *impl_;
  CHECK(!w.file.is_open(), "begin() twice");
  auto file = OutputFile::create(path);
  if (!file) return file.error();
  w.file = std::move(*file);
  return w.put(w.header());
}

Status GgufWriter::Impl::end_tensor() {
  static constexpr std::byte kZeros[64] = {};
  for (uint64_t pad = padding(done); pad > 0;) {
    const uint64_t n = std::min<uint64_t>(pad, sizeof kZeros);
    if (Status s = put({kZeros, size_t(n)}); !s) return s;
    pad -= n;
  }
  ++current;
  done = 0;
  return Ok{};
}

Status GgufWriter::write(std::span<const std::byte> bytes) {
  Impl& w = *impl_;
  CHECK(w.file.is_open(), "write() before begin()");
  CHECK(w.current < w.infos.size(), "{} bytes after the last tensor", bytes.size());
  const Impl::Info& t = w.infos[w.current];
  CHECK(bytes.size() <= t.bytes - w.done, "tensor {}: {} bytes too many", t.name, bytes.size() - (t.bytes - w.done));
  if (Status s = w.put(bytes); !s) return s;
  w.done += bytes.size();
  return w.done == t.bytes ? w.end_tensor() : Status(Ok{});
}

Status GgufWriter::finish() {
  Impl& w = *impl_;
  CHECK(w.file.is_open(), "finish() before begin()");
  CHECK(w.current == w.infos.size(), "{} of {} tensors were written", w.current, w.infos.size());
  if (Status s = w.flush(); !s) return s;
  return w.file.finish();
}

}  // namespace facet
