// What becomes of a file's tensors on the device: their types there, what the kernels cannot take, bytes, uploads.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>

#include "backend/cuda/cuda.h"
#include "formats/widen.h"

namespace facet {

namespace {
constexpr int kMostFused = 3;  // matrices of a launch

// The tile that holds a type as it is; none for what the kernels do not read.
std::optional<cuda::Tile> tile_of(DType t) {
  switch (t) {
    case DType::kQ4_K:
      return cuda::Tile::kQ4_K;
    case DType::kQ5_K:
      return cuda::Tile::kQ5_K;
    case DType::kQ6_K:
      return cuda::Tile::kQ6_K;
    case DType::kQ4_0:
      return cuda::Tile::kQ4_0;
    case DType::kQ5_0:
      return cuda::Tile::kQ5_0;
    case DType::kQ8_0:
      return cuda::Tile::kQ8_0;
    case DType::kF16:
      return cuda::Tile::kF16;
    case DType::kBF16:
      return cuda::Tile::kBF16;
    default:
      return std::nullopt;
  }
}
// Factors of a matrix go into its values.
DType kept_type(const TensorView& t) {
  if (!t.scale.empty()) return DType::kBF16;
  return tile_of(t.type) ? t.type : wider_type(t.type);
}
// The choice of experts may depend on the last bits, so routers are f32, without tiles.
constexpr std::string_view kDownExperts = "ffn_down_exps.weight";
bool is_router(const TensorView& t) { return t.name.ends_with("ffn_gate_inp.weight"); }
cuda::TiledMatrix tiles_of(const TensorView& t, Cuda::Fine which = Cuda::Fine::kNone) {
  const cuda::Tile tile = *tile_of(kept_type(t));
  const bool fine =
      which == Cuda::Fine::kAll || (which == Cuda::Fine::kAttention && t.name.find(".attn_") != std::string::npos);
  return {.p = nullptr,
          .tile = tile,
          .n_out = int(t.ne[1]),
          .n_in = int(t.ne[0]),
          .n_stack = int(t.ne[2]),
          .fine = fine && cuda::may_be_fine(tile)};
}
}  // namespace

// By elements: in files of K-quants of few bits other types fill in where columns do not divide.
Cuda::Fine Cuda::fineness(std::span<const TensorView> tensors) {
  bool by_layer = false;
  int64_t fine = 0, all = 0;
  for (const TensorView& t : tensors) {
    by_layer |= t.name.starts_with("per_layer_token_embd");
    if (t.n_dims < 2 || is_router(t) || t.name.starts_with("token_embd") || t.name.starts_with("output.")) continue;
    all += t.n_elements();
    if (cuda::tile_layout(tiles_of(t).tile).is_precise) fine += t.n_elements();
  }
  return 2 * fine > all ? Fine::kAll : by_layer ? Fine::kAttention : Fine::kNone;
}

int64_t Cuda::most_cols(const cuda::DeviceInfo& d, bool is_wide) {
  return cuda::skinny_most_cols(d, is_wide ? cuda::Input::kBf16 : cuda::Input::kByte);
}

Status Cuda::accepts(const std::string& file, std::span<const TensorView> tensors, int n_expert_used,
                     int64_t most_byte_cols, int64_t most_wide_cols) {
  constexpr const char* kRemedy = "use --backend cpu";
  auto refused = [&](const TensorView& t, const std::string& what) {
    return Error{file, fmt::format("{}: {}", t.name, what), kRemedy};
  };
  auto is_bf = [](const TensorView& t) { return cuda::is_float(tiles_of(t).tile); };
  const Fine fine = fineness(tensors);
  for (const TensorView& t : tensors) {
    if (t.n_dims < 2) continue;
    if (is_router(t)) {
      if (t.ne[1] > cuda::kMaxExperts || n_expert_used > cuda::kMaxUsed)
        return refused(t, fmt::format("expected at most {} experts, {} of them used, on a GPU; found {} and {}",
                                      cuda::kMaxExperts, cuda::kMaxUsed, t.ne[1], n_expert_used));
      if (t.ne[0] > cuda::kMaxRouterCols || t.ne[0] % 8 != 0)
        return refused(t, fmt::format("expected a multiple of 8 and at most {} columns on a GPU, found {}",
                                      cuda::kMaxRouterCols, t.ne[0]));
      continue;
    }
    if (const int64_t most = cuda::input_of(tiles_of(t, fine)) == cuda::Input::kByte ? most_byte_cols : most_wide_cols;
        t.ne[0] > most)
      return refused(t, fmt::format("expected at most {} columns of {} on this GPU, found {}", most,
                                    dtype_name(kept_type(t)), t.ne[0]));
    if (t.name.ends_with("ffn_down_exps.weight") && t.ne[0] % cuda::kTileRows != 0)
      return refused(
          t, fmt::format("expected experts of a multiple of {} columns on a GPU, found {}", cuda::kTileRows, t.ne[0]));
    // Gate and up are one product: both of bf16 or f16, or both quantised.
    const size_t at = t.name.find("ffn_gate");
    if (at == std::string::npos || t.name.find("ffn_gate_up") != std::string::npos) continue;
    const std::string up = t.name.substr(0, at) + "ffn_up" + t.name.substr(at + 8);
    for (const TensorView& u : tensors)
      if (u.name == up && is_bf(u) != is_bf(t))
        return refused(u, fmt::format("expected a type like {}'s ({}) on a GPU, found {}", t.name, dtype_name(t.type),
                                      dtype_name(u.type)));
  }
  return Ok{};
}

DType Cuda::kept(const TensorView& t) { return t.n_dims < 2 || is_router(t) ? t.type : kept_type(t); }
bool Cuda::keeps(const TensorView& t) { return kept(t) == t.type && t.scale.empty(); }
int64_t Cuda::weight_bytes(const TensorView& t) {
  if (t.n_dims < 2) return int64_t(t.data.size());
  return is_router(t) ? t.n_elements() * int64_t(sizeof(float)) : tiles_of(t).matrix_bytes() * t.ne[2];
}
int64_t Cuda::host_table_bytes(const WeightsInRam& in_ram, std::span<const TensorView> tensors, int max_tok) {
  int64_t n = 0;
  for (const TensorView& t : tensors)
    if (in_ram.tables && t.name == kPerLayerTable) n += cuda::HostTable::bytes(tiles_of(t), kept_type(t), max_tok);
  return n;
}
int64_t Cuda::streamed_layer_bytes(const WeightsInRam& in_ram, std::span<const TensorView> tensors) {
  std::map<int, int64_t> layers;
  for (const TensorView& t : tensors)
    if (const int layer = layer_of_tensor(t.name); layer >= 0 && in_ram.holds(t.name)) layers[layer] += weight_bytes(t);
  int64_t most = 0;
  for (const auto& [layer, bytes] : layers) most = std::max(most, bytes);
  return most;
}
namespace {
int64_t partials_of(const cuda::DeviceInfo& d, const cuda::TiledMatrix& m) {
  return std::max(kMostFused * cuda::skinny_partials(d, m), cuda::wide_partials(d, m));
}
}  // namespace
int64_t Cuda::partial_bytes(const cuda::DeviceInfo& d, std::span<const TensorView> tensors) {
  int64_t most = 0;
  const Fine fine = fineness(tensors);
  for (const TensorView& t : tensors)
    if (t.n_dims == 2) most = std::max(most, partials_of(d, tiles_of(t, fine)) * int64_t(sizeof(float)));
  return most;
}

int64_t Cuda::most_unpacked(const cuda::DeviceInfo& d, std::span<const TensorView> tensors) {
  int64_t most = 0;
  for (const TensorView& t : tensors)
    if (t.n_dims == 2 && !is_router(t) && unpacks(d, tiles_of(t).tile)) most = std::max(most, t.n_elements());
  return most;
}

bool Cuda::upload_resident(Weight& w, const TensorView& t, DType kept, std::span<const int16_t> slots) {
  const int16_t*& of_layer = slots_[w.layer];
  if (!of_layer) of_layer = copied(slots);
  w.slots = of_layer;
  const int64_t n = in_ram_.resident(t.name, t.ne[2]);
  w.m.p = static_cast<uint8_t*>(device_.allocate(size_t(w.m.matrix_bytes() * n), t.name));
  if (!w.slots || !w.m.p) return false;
  const size_t bytes = t.data.size() / size_t(t.ne[2]);
  for (size_t first = 0, end; first < slots.size(); first = end) {  // runs of them
    for (end = first + 1; end < slots.size() && (slots[end] < 0) == (slots[first] < 0);) ++end;
    if (slots[first] < 0) continue;
    TensorView part = t;
    part.ne[2] = int64_t(end - first);
    part.data = t.data.subspan(first * bytes, (end - first) * bytes);
    if (!t.scale.empty()) part.scale.assign(t.scale.begin() + ptrdiff_t(first), t.scale.begin() + ptrdiff_t(end));
    cuda::TiledMatrix to = w.m;
    to.p += w.m.matrix_bytes() * slots[first];
    to.n_stack = int(end - first);
    if (!loader_.load(to, part, kept)) return false;
  }
  return true;
}

void Cuda::count_experts(std::shared_ptr<ExpertUsage> usage) {
  usage_ = std::move(usage);
  for (auto& [layer, to] : expert_times_) {
    const std::vector<unsigned> none(size_t(to.n));
    to.times = copied(std::span<const unsigned>(none));
    FACET_CUDA_CHECK(cudaStreamSynchronize(stream_));
    if (!to.times) return usage_.reset();
  }
}

Cuda::Weight Cuda::upload(const TensorView& t) {
  names_.push_back(t.name);
  Weight w;
  w.type = t.type, w.n_in = t.ne[0], w.n_out = t.ne[1], w.n_stack = t.ne[2], w.name = names_.back().c_str();
  if (is_router(t)) {
    std::vector<float> f(static_cast<size_t>(t.n_elements()));
    dequantize_row(t.type, t.data.data(), f.data(), t.n_elements());
    float* p = static_cast<float*>(device_.allocate(f.size() * sizeof(float), t.name));
    if (p) FACET_CUDA_CHECK(cudaMemcpyAsync(p, f.data(), f.size() * sizeof(float), cudaMemcpyHostToDevice, stream_));
    w.f32 = p;
    return w;
  }
  const DType kept = kept_type(t);
  w.m = tiles_of(t, fine_);
  if (w.n_stack == 1) {
    most_partials_ = std::max(most_partials_, partials_of(device_.info(), w.m));
    most_int8_ = std::max(most_int8_, cuda::skinny_image_bytes(w.n_in));
    if (unpacks(device_.info(), w.m.tile)) most_unpacked_ = std::max(most_unpacked_, w.n_out * w.n_in);
  }
  if (in_ram_.holds(t.name) && t.name == kPerLayerTable) {
    host_table_ = std::make_unique<cuda::HostTable>(device_);
    host_table_->set(t, w.m, kept);
    w.is_host_table = true;
    return w;
  }
  if (t.name.ends_with(kDownExperts)) expert_times_[layer_of_tensor(t.name)].n = int(t.ne[2]);
  if (in_ram_.holds(t.name)) {
    w.layer = layer_of_tensor(t.name);
    w.in_ram = cpu_ffn_->add(t);
    w.streamed = weight_stream_->add(w.layer, t, w.m, kept);
    if (const auto slots = in_ram_.slots(t.name); !slots.empty()) upload_resident(w, t, kept, slots);
    return w;
  }
  w.m.p = static_cast<uint8_t*>(device_.allocate(size_t(w.m.matrix_bytes() * w.n_stack), t.name));
  if (!w.m.p) return w;
  loader_.load(w.m, t, kept);
  return w;
}

}  // namespace facet
