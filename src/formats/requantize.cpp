#include "formats/requantize.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <span>

#include "base/files.h"
#include "base/mmap.h"
#include "base/threads.h"
#include "formats/format_error.h"
#include "formats/quantize.h"

namespace facet {
namespace {

constexpr size_t kPieceElements = size_t(8) << 20;  // converted between two writes: 32 MB as f32
constexpr size_t kSliceElements = size_t(1) << 16;  // converted by one thread at a time
constexpr size_t kCopyBytes = size_t(16) << 20;

bool is_quantised(DType t) { return dtype_info(t).matmul && dtype_info(t).block > 1; }

Result<MixtureModel> model_of(const GgufFile& in) {
  auto arch = in.get_string("general.architecture");
  if (!arch) return arch.error();
  auto layers = in.get_int(*arch + ".block_count");
  if (!layers) return layers.error();
  // Arrays hold one count for each layer; the rule asks about the first.
  auto heads = in.get_ints(*arch + ".attention.head_count", 0);
  if (!heads) return heads.error();
  auto kv_heads = in.get_ints(*arch + ".attention.head_count_kv", 0);
  if (!kv_heads) return kv_heads.error();
  if (heads->empty() || kv_heads->empty() || kv_heads->front() < 1)
    return format_error(in.path(), fmt::format("key '{}.attention.head_count_kv'", *arch), "at least 1 head in layer 0",
                        "none", "check that this is the right model file, or convert it again");
  return MixtureModel{*layers, heads->front() / kv_heads->front()};
}

Status check_source(const GgufFile& in, const std::vector<DType>& types, const RequantizeOptions& o) {
  for (size_t i = 0; i < types.size(); ++i) {
    const TensorView& t = in.tensors()[i];
    if (is_quantised(t.type) && !o.allow_requantize)
      return format_error(in.path(), fmt::format("tensor '{}'", printable(t.name)), "F32, F16 or BF16",
                          dtype_name(t.type),
                          "quantise the BF16 file instead; --allow-requantize accepts the double loss");
  }
  return Ok{};
}

void declare(const GgufFile& in, const Mixture& m, const std::vector<DType>& types, GgufWriter& w) {
  const auto set = [&](const char* key, int64_t value) {
    if (!in.find_meta(key)) w.add(key, value);
  };
  for (const auto& [key, value] : in.meta()) {
    if (key.starts_with("split.")) continue;
    if (key == "general.file_type") {
      w.add(key, m.file_type);
    } else if (key == "general.quantization_version") {
      w.add(key, int64_t(2));
    } else {
      w.add_raw(key, value);
    }
  }
  set("general.file_type", m.file_type);
  set("general.quantization_version", 2);
  for (size_t i = 0; i < types.size(); ++i) {
    const TensorView& t = in.tensors()[i];
    w.add_tensor(t.name, types[i], {t.ne.begin(), t.ne.begin() + std::max(1, t.n_dims)});
  }
}

class Converter {
 public:
  Converter(const GgufFile& in, GgufWriter& out, int n_threads, const RequantizeProgress& progress)
      : out_(out), n_threads_(n_threads), progress_(progress) {
    for (const TensorView& t : in.tensors()) total_ += t.data.size();
  }

  Status copy(const TensorView& t) {
    for (size_t at = 0; at < t.data.size(); at += kCopyBytes) {
      const auto piece = t.data.subspan(at, std::min(kCopyBytes, t.data.size() - at));
      if (Status s = out_.write(piece); !s) return s;
      finish(piece);
    }
    return Ok{};
  }

  Status convert(const TensorView& t, DType to, const std::string& where) {
    const int64_t n = t.ne[0], rows = t.n_elements() / n;
    const int64_t rows_per_piece = std::max<int64_t>(1, int64_t(kPieceElements) / n);
    for (int64_t row = 0; row < rows; row += rows_per_piece) {
      const int64_t count = std::min(rows_per_piece, rows - row);
      const std::byte* src = t.data.data() + size_t(row) * row_bytes(t.type, n);
      if (!convert_rows(src, t.type, to, n, count))
        return format_error(where, fmt::format("tensor '{}'", printable(t.name)),
                            fmt::format("finite weights within the range of {}", dtype_name(to)),
                            "a NaN, an infinity or a larger one",
                            "the source is damaged: download or convert it again");
      if (Status s = out_.write(piece_); !s) return s;
      finish({src, size_t(count) * row_bytes(t.type, n)});
    }
    return Ok{};
  }

 private:
  // Into piece_. False if a value cannot be held.
  bool convert_rows(const std::byte* src, DType from, DType to, int64_t n, int64_t rows) {
    const size_t in_row = row_bytes(from, n), out_row = row_bytes(to, n);
    const float most = to == DType::kF16 ? 65504.0f : std::numeric_limits<float>::max();
    const int64_t per_slice = std::max<int64_t>(1, int64_t(kSliceElements) / n);
    std::atomic<bool> good = true;
    piece_.resize(size_t(rows) * out_row);
    parallel_for((rows + per_slice - 1) / per_slice, n_threads_, [&](int64_t slice) {
      const int64_t first = slice * per_slice, count = std::min(per_slice, rows - first);
      std::vector<float> x(size_t(count * n));
      dequantize_row(from, src + size_t(first) * in_row, x.data(), count * n);
      bool held = true;
      for (float v : x) held &= std::fabs(v) <= most;
      if (!held) good = false;
      quantize_row(to, x.data(), piece_.data() + size_t(first) * out_row, count * n);
    });
    return good;
  }

  // A piece of the source is done with.
  void finish(std::span<const std::byte> piece) {
    done_ += piece.size();
    release_pages(piece);
    if (progress_) progress_(done_, total_);
  }

  GgufWriter& out_;
  int n_threads_;
  const RequantizeProgress& progress_;
  std::vector<std::byte> piece_;
  uint64_t done_ = 0, total_ = 0;
};

}  // namespace

Result<std::vector<DType>> requantized_types(const GgufFile& in, const Mixture& mixture) {
  auto model = model_of(in);
  if (!model) return model.error();
  std::vector<MixtureTensor> tensors;
  for (const TensorView& t : in.tensors()) tensors.push_back({t.name, t.ne, t.type});
  return mixture_types(mixture, tensors, *model);
}

Result<RequantizeReport> requantize(const GgufFile& in, const std::string& out, const Mixture& mixture,
                                    const RequantizeOptions& options, const RequantizeProgress& progress) {
  auto types = requantized_types(in, mixture);
  if (!types) return types.error();
  if (Status s = check_source(in, *types, options); !s) return s.error();
  // Writing over the source would destroy it: it is mapped while the result is written.
  if (Status s = check_output(out, gguf_parts(in.path())); !s) return s.error();
  GgufWriter w;
  declare(in, mixture, *types, w);
  RequantizeReport report{0, 0, in.file_bytes(), w.total_bytes()};
  if (Status s = check_room(out, report.bytes_out); !s) return s.error();
  if (Status s = w.begin(out); !s) return s.error();
  Converter converter(in, w, options.n_threads, progress);
  for (size_t i = 0; i < types->size(); ++i) {
    const TensorView& t = in.tensors()[i];
    const bool same = t.type == (*types)[i];
    if (Status s = same ? converter.copy(t) : converter.convert(t, (*types)[i], in.path()); !s) return s.error();
    ++(same ? report.copied : report.converted);
  }
  if (Status s = w.finish(); !s) return s.error();
  return report;
}

}  // namespace facet
