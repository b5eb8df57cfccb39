// Matrix products: of few rows (kernels/matmul), of many (gemm.h), and of experts.
#include <algorithm>

#include "backend/cuda/cuda.h"
#include "backend/cuda/kernels/common/small_model.h"
#include "backend/cuda/kernels/ops.h"

namespace facet {

using cuda::Mat;

void Cuda::products(std::span<const Rows> y, const Rows& x, std::span<const Weight> w, bool glu, Act act,
                    const Rows* twin, cuda::SkinnyWork work, bool rounded) {
  acts_.resolve_kind<cuda::PartialSums>();  // their memory is used again
  const __nv_bfloat16* in = acts_.rounded(x);
  const int64_t stride = x.buffer->stride;
  const int rows = x.rows, small = small_rows(rows);
  const bool is_long = rows - small > kSkinnyMost &&
                       std::ranges::all_of(w, [&](const Weight& m) { return takes_codes(m) || gemm_.fits(m.m); });
  const bool in_bytes =
      std::ranges::all_of(w, [](const Weight& m) { return cuda::input_of(m.m) == cuda::Input::kByte; });
  for (size_t i = 0; i < y.size(); ++i) acts_.written(y[i], glu);
  if (twin) acts_.written(*twin, false);
  if (const int n = is_long ? small : rows; n > 0) {
    cuda::SkinnyMatrix m[3] = {};
    for (size_t i = 0; i < w.size(); ++i) {
      m[i].w = w[i].m;
      const Mat at = acts_.mat_at(y[glu ? 0 : i], 0, n, glu);
      m[i].y = at.p, m[i].y_stride = at.stride, m[i].y_bf = at.bf, m[i].y_bf_stride = at.bf_stride;
      if (twin && i == 1) m[i].y_also = acts_.mat_at(*twin, 0, n, false).p;
    }
    const bool ready = in_bytes && n == rows && acts_.has_int8(x);
    if (!ready) acts_.forget_int8();
    work.partial = partial_, work.partial_floats = most_partials_, work.counter = counter_;
    work.image = acts_.int8(), work.image_ready = ready;
    work.leave = w.size() == 1 && n == y[0].rows && !twin;
    const cuda::Partials left = cuda::skinny(stream_, m, int(w.size()), glu, act, in, stride, n, work);
    if (left.p) acts_.defer(cuda::PartialSums{.of = y[0], .sums = left});
  }
  if (is_long) long_products(y, in + small * stride, stride, small, rows - small, w, glu, act, twin, rounded);
}

// Rows [first, first + n), straight from the codes where that is faster, else by way of bf16 panels.
void Cuda::long_products(std::span<const Rows> y, const __nv_bfloat16* x, int64_t x_stride, int first, int n,
                         std::span<const Weight> w, bool glu, Act act, const Rows* twin, bool rounded) {
  cuda::SkinnyMatrix code[3] = {};
  int n_code = 0;
  for (size_t i = 0; i < w.size(); ++i) {
    if (!takes_codes(w[i])) continue;
    cuda::SkinnyMatrix& m = code[n_code++];
    const Mat to = acts_.mat_at(y[glu ? 0 : i], first, n, glu);
    m.w = w[i].m, m.y = to.p, m.y_stride = to.stride, m.y_bf = to.bf, m.y_bf_stride = to.bf_stride;
    if (twin && i == 1) m.y_also = acts_.mat_at(*twin, first, n, false).p;
  }
  if (n_code > 0) cuda::prompt(stream_, code, n_code, glu, act, x, x_stride, n, images_, images_bytes_);
  if (glu) {
    if (n_code > 0) return;  // both: they are alike
    const Mat to = acts_.mat_at(y[0], first, n, true);
    return gemm_.multiply_gated(to, x, x_stride, w[0].m, w[1].m, act, rounded);
  }
  cuda::Gemm::Product rest[cuda::Gemm::kMost];
  size_t n_rest = 0;
  for (size_t i = 0; i < w.size(); ++i) {
    if (takes_codes(w[i])) continue;
    rest[n_rest++] = {.y = acts_.mat_at(y[i], first, n, false),
                      .w = w[i].m,
                      .also = twin && i == 1 ? acts_.mat_at(*twin, first, n, false) : Mat{}};
  }
  gemm_.multiply({rest, n_rest}, x, x_stride);
}

void Cuda::matmul(Rows y, Rows x, Weight w) {
  CHECK(w.n_in == x.cols && w.n_out == y.cols && x.rows == y.rows, "{}: [{} x {}] times [{}, {}] into [{}, {}]", w.name,
        w.n_out, w.n_in, x.rows, x.cols, y.rows, y.cols);
  if (y.rows > 0) products({&y, 1}, x, {&w, 1}, false, Act::kGelu, nullptr);
}

void Cuda::matmul_beside(Rows y, Weight w, Rows z, Weight u, Rows x) {
  products({&y, 1}, x, {&w, 1}, false, Act::kGelu, nullptr, {.in_turn = true});
  products({&z, 1}, x, {&u, 1}, false, Act::kGelu, nullptr, {.late = true});
}

void Cuda::qkv(Rows q, Rows k, Rows v, Rows h, Weight wq, Weight wk, Weight wv) {
  const Rows y[3] = {q, k, v};
  const Weight w[3] = {wq, wk, wv};
  const size_t n = wv ? 3 : 2;
  products(std::span(y, n), h, std::span(w, n), false, Act::kGelu, wv ? nullptr : &v);
}

void Cuda::gate_up(Rows y, Rows h, Weight gate, Weight up, Act act) {
  const Weight w[2] = {gate, up};
  products({&y, 1}, h, w, true, act, nullptr);
}
void Cuda::hidden(Rows y, Rows h, Weight gate, Weight up, Act act) {
  const Weight w[2] = {gate, up};
  products({&y, 1}, h, w, true, act, nullptr, {}, true);
}

// Of weights in RAM, the GPU multiplies whole steps by what is brought, and the CPU's rows are written over its own: they
// are few beside a block.
void Cuda::ffn(Rows y, Rows g, Rows h, Weight gate, Weight up, Weight down, Act act) {
  if (!down.in_ram) {
    hidden(g, h, gate, up, act);
    return matmul(y, g, down);
  }
  const int streamed = streamed_rows(y.rows), on_cpu = y.rows - streamed;
  const auto begin = [&](int row) {
    const int n = std::min(cuda::CpuFfn::kRows, on_cpu - row);
    cpu_ffn_->begin(gate.in_ram, up.in_ram, down.in_ram, acts_.mat_at(h, row, n, false), act);
    return n;
  };
  int n = on_cpu > 0 ? begin(0) : 0;
  if (streamed > 0) {
    weight_stream_->acquire(down.layer);
    hidden(g, h, on_gpu(gate), on_gpu(up), act);
    matmul(y, g, on_gpu(down));
    acts_.mat(y, false);  // with all that is pending
    weight_stream_->release(down.layer);
  }
  acts_.written(y, false);
  for (int row = 0; row < on_cpu; n = row < on_cpu ? begin(row) : 0) {
    cpu_ffn_->end(acts_.mat_at(y, row, n, false));
    row += n;
  }
}

cuda::MoeExperts Cuda::experts_of(const MoeWeights<Weight, Vec>& w, int n_used, Act act, bool resident) const {
  cuda::MoeExperts m;
  m.d_expert = int(w.down.n_in);
  const auto tiles = [&](const Weight& of) { return resident ? of.m : on_gpu(of).m; };
  if (w.gate_up)
    m.gate = m.up = tiles(w.gate_up), m.up_strip = m.d_expert / cuda::kTileRows;
  else
    m.gate = tiles(w.gate), m.up = tiles(w.up);
  m.down = tiles(w.down);
  if (resident) m.slots = w.down.slots;
  m.router = w.router.f32, m.scale = w.scale.p;
  m.n_expert = int(w.router.n_out), m.n_used = n_used, m.act = act;
  CHECK(m.router && m.d_expert % cuda::kTileRows == 0, "{}: a router in f32 and experts of a multiple of 16 rows",
        w.router.name);
  return m;
}

void Cuda::moe_on_gpu(Rows y, Rows e, Rows r, const cuda::MoeExperts& m, const Weight& down, int first) {
  acts_.resolve_kind<cuda::ExpertOutputs>(), acts_.resolve_kind<cuda::ExpertPanels>();  // their memory is used again
  acts_.rounded(e);
  const int small = std::max(first, small_rows(y.rows)),
            many = y.rows - small > moe_small_most(device_.info()) ? y.rows - small : 0, last = y.rows - many;
  for (int row = first, n = 0; row < last; row += n) {
    n = std::min(cuda::kMoeSmallBatch, last - row);
    const cuda::RouterArgs job = cuda::router_args(m, acts_.mat_at(r, row, n, false), n, moe_.routing);
    n > cuda::kMoeRows ? cuda::route_small_batch(stream_, job) : cuda::route(stream_, job);
    cuda::moe_small_batch(stream_, m, acts_.mat_at(e, row, n, true), n, moe_);
    count_chosen(down, moe_.routing.expert, n * m.n_used);
    if (first == 0 && y.rows <= cuda::kMoeSmallBatch && many == 0)
      acts_.defer(cuda::ExpertOutputs{y, {moe_.out, moe_.routing.weight, m.n_used}});
    else
      cuda::moe_small_batch_combine(stream_, acts_.mat_at(y, row, n, false), moe_.out, moe_.routing.weight, m.n_used);
  }
  if (many > 0) {
    const cuda::MoePanelRows left =
        cuda::moe_large_batch(stream_, m, acts_.mat_at(y, last, many, false), acts_.mat_at(e, last, many, true),
                              acts_.mat_at(r, last, many, false), moe_large_batch_, last == 0);
    if (left.rows) acts_.defer(cuda::ExpertPanels{y, left});
  }
  if (many > 0) count_chosen(down, moe_large_batch_.expert, ((many - 1) % cuda::kMoeLargeBatchTokens + 1) * m.n_used);
}

void Cuda::begin_on_cpu(Rows e, Rows r, const MoeWeights<Weight, Vec>& w, int n_used, Act act, int row, int n) {
  cuda::MoeExperts m;
  m.router = w.router.f32, m.scale = w.scale.p, m.n_expert = int(w.router.n_out), m.n_used = n_used;
  const cuda::RouterArgs job = cuda::router_args(m, acts_.mat_at(r, row, n, false), n, moe_.routing);
  n > cuda::kMoeRows ? cuda::route_small_batch(stream_, job) : cuda::route(stream_, job);
  MoeWeights<const cuda::CpuFfn::Weight*, int> host;
  host.gate_up = w.gate_up.in_ram, host.gate = w.gate.in_ram, host.up = w.up.in_ram, host.down = w.down.in_ram;
  count_chosen(w.down, moe_.routing.expert, n * n_used);
  cpu_ffn_->begin(host, acts_.mat_at(e, row, n, false), moe_.routing, n_used, act, w.down.slots);
}

cuda::MoePart Cuda::resident_experts(Rows e, const MoeWeights<Weight, Vec>& w, int n_used, Act act, int row, int n) {
  if (!w.down.slots) return {};
  const cuda::MoeExperts m = experts_of(w, n_used, act, true);
  acts_.rounded(e);
  cuda::moe_place(stream_, moe_.routing, m.slots, m.n_expert, n, n_used);
  cuda::moe_small_batch(stream_, m, acts_.mat_at(e, row, n, true), n, moe_);
  return {.out = moe_.out,
          .weight = moe_.routing.weight,
          .expert = moe_.routing.expert,
          .slots = m.slots,
          .n_used = n_used};
}

void Cuda::count_chosen(const Weight& down, const int32_t* expert, int n_slot) {
  if (!usage_) return;
  if (const auto of = expert_times_.find(layer_of_tensor(down.name)); of != expert_times_.end())
    cuda::moe_count(stream_, of->second.times, expert, n_slot);
}

void Cuda::moe(Rows y, Rows e, Rows r, MoeWeights<Weight, Vec> w, int n_used, Act act) {
  if (!w.down.in_ram) {
    acts_.written(y, false);
    return moe_on_gpu(y, e, r, experts_of(w, n_used, act), w.down, 0);
  }
  acts_.resolve_kind<cuda::ExpertOutputs>();  // the routing's memory is used again
  acts_.written(y, false);
  const int on_cpu = y.rows - streamed_rows(y.rows);
  for (int row = 0, n = 0; row < on_cpu; row += n) {
    n = std::min(cuda::CpuFfn::kRows, on_cpu - row);
    begin_on_cpu(e, r, w, n_used, act, row, n);
    const cuda::MoePart part = resident_experts(e, w, n_used, act, row, n);
    cpu_ffn_->end(acts_.mat_at(y, row, n, false), part);
  }
  if (on_cpu == y.rows) return;
  weight_stream_->acquire(w.down.layer);
  moe_on_gpu(y, e, r, experts_of(w, n_used, act), w.down, on_cpu);
  weight_stream_->release(w.down.layer);
}

// Few tokens: the routing runs beside the product of gate and up, and the first half of the experts beside down. Those
// in RAM are computed while both run.
void Cuda::ffn_beside_moe(Rows y, Rows g, Rows h, Weight gate, Weight up, Weight down, Rows o, Rows e, Rows r,
                          MoeWeights<Weight, Vec> w, int n_used, Act act) {
  const bool on_cpu = w.down.in_ram && y.rows <= cuda::CpuFfn::kRows && streamed_rows(y.rows) == 0;
  if (on_cpu) {
    acts_.resolve_kind<cuda::ExpertOutputs>();
    begin_on_cpu(e, r, w, n_used, act, 0, y.rows);
  }
  if (on_cpu || w.down.in_ram || y.rows > cuda::kMoeRows) {
    hidden(g, h, gate, up, act);
    matmul(y, g, down);
    if (on_cpu) {
      const cuda::MoePart part = resident_experts(e, w, n_used, act, 0, y.rows);
      return cpu_ffn_->end(acts_.written(o, false), part);
    }
    return moe(o, e, r, w, n_used, act);
  }
  const cuda::MoeExperts m = experts_of(w, n_used, act);
  // moe_small_batch reads early what the routing writes; one token's experts are looked for until they are there.
  const bool ahead = y.rows == 1 && h.cols > cuda::kSmallModelCols;
  cuda::RouterArgs routing = cuda::router_args(m, acts_.mat(r, false), y.rows, moe_.routing);
  routing.ahead = ahead;
  acts_.resolve_kind<cuda::ExpertOutputs>();  // their memory is used again
  acts_.rounded(e);
  const Weight both[2] = {gate, up};
  products({&g, 1}, h, both, true, act, nullptr, {.beside = &routing, .in_turn = ahead, .thirds = 1});
  products({&y, 1}, g, {&down, 1}, false, act, nullptr, {.in_turn = !ahead, .ahead = ahead, .thirds = 1});
  acts_.written(o, false);
  cuda::moe_small_batch(stream_, m, acts_.mat(e, true), y.rows, moe_, true);
  count_chosen(w.down, moe_.routing.expert, y.rows * n_used);
  acts_.defer(cuda::ExpertOutputs{o, {moe_.out, moe_.routing.weight, n_used}});
}

}  // namespace facet
