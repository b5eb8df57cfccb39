#include "backend/cuda/cuda_link.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>

#include "backend/cuda/peers.h"
#include "base/check.h"

namespace facet {
namespace {

constexpr int kSets = 2;  // of mailboxes
int64_t box_bytes(int n, int64_t floats) { return kSets * n * floats * int64_t(sizeof(uint64_t)); }
constexpr int64_t kFlagBytes = int64_t(cuda::kSumBlocks) * kMaxShards * int64_t(sizeof(uint32_t));

}  // namespace

int64_t CudaLink::memory_bytes(int n) {
  return n > 1 ? box_bytes(n, kBoxFloats) + kFlagBytes + cuda::kCounterWords * int64_t(sizeof(uint32_t)) : 0;
}

CudaLink::~CudaLink() {
  for (Shard& s : shard_) {  // nobody may write to memory that is gone
    s.b->make_current();
    cudaStreamSynchronize(s.b->device().stream());
  }
  for (void* p : host_) cudaFreeHost(p);
}

void CudaLink::allocate(Shard& s, int n) {
  cuda::Device& d = s.b->device();
  d.make_current();
  const size_t box = size_t(box_bytes(n, kBoxFloats)), flags = size_t(kFlagBytes),
               counters = size_t(cuda::kCounterWords) * sizeof(uint32_t);
  const auto of_host = [&](size_t bytes) {
    void* p = nullptr;
    if (cudaHostAlloc(&p, bytes, cudaHostAllocPortable | cudaHostAllocMapped) != cudaSuccess) {
      cudaGetLastError();
      d.fail("page-locked memory that GPUs exchange sums through", bytes);
      return p;
    }
    std::memset(p, 0, bytes);
    host_.push_back(p);
    return p;
  };
  const auto of_device = [&](size_t bytes) {
    void* p = d.allocate(bytes, "what GPUs tell each other");
    if (p) FACET_CUDA_CHECK(cudaMemsetAsync(p, 0, bytes, d.stream()));
    return p;
  };
  s.box = static_cast<uint64_t*>(peers_ ? of_device(box) : of_host(box));
  s.flag = static_cast<uint32_t*>(peers_ ? of_device(flags) : of_host(flags));
  s.x.counters = static_cast<uint32_t*>(of_device(counters));
  s.x.failed = static_cast<uint32_t*>(of_host(sizeof(uint32_t)));
  FACET_CUDA_CHECK(cudaStreamSynchronize(d.stream()));  // others may write there from now on
}

void CudaLink::connect(std::span<const std::unique_ptr<Cuda>> shards) {
  for (const auto& b : shards) shard_.push_back({.b = b.get()});
  const int n = int(shard_.size());
  if (n < 2) return;
  peers_ = open_peers(shards);
  for (Shard& s : shard_) allocate(s, n);
  for (int i = 0; i < n; ++i) {
    cuda::Communicator& x = shard_[size_t(i)].x;
    x.me = i, x.n = n, x.box_floats = kBoxFloats;
    for (size_t j = 0; j < shard_.size(); ++j) x.box[j] = shard_[j].box, x.flag[j] = shard_[j].flag;
  }
  set_spin_timeout(kSpinTimeout);
}
void CudaLink::set_spin_timeout(double seconds) {
  for (Shard& s : shard_) s.x.timeout_ns = uint64_t(seconds * 1e9);
}

// f(number, shard), with its GPU current.
template <class F>
void CudaLink::each(F&& f) {
  for (size_t i = 0; i < shard_.size(); ++i) {
    shard_[i].b->make_current();
    f(i, shard_[i]);
  }
}

// Whether they go through mailboxes, at once.
bool CudaLink::is_few(std::span<const Part> parts) const {
  int64_t floats = 0;
  for (const Part& p : parts) floats += int64_t(p.rows[0].rows) * ((p.rows[0].cols + 1) / 2 * 2);
  return floats <= (peers_ ? kFewFloats : kBoxFloats);
}
void CudaLink::sum_few(std::span<const Part> parts) {
  std::array<std::array<cuda::SumPart, 2>, kMaxShards> sum{};
  each([&](size_t i, Shard& s) {
    for (size_t k = 0; k < parts.size(); ++k) {
      const Rows& r = parts[k].rows[i];
      const cuda::Partials left = s.b->take_sums(r);
      const cuda::MoeSlots slots = s.b->take_experts(r);
      sum[i][k] = {s.b->changed(r), left, slots, parts[k].has};
    }
  });
  each([&](size_t i, Shard& s) { cuda::all_reduce(s.b->device().stream(), s.x, sum[i][0], sum[i][1]); });
}
void CudaLink::sum_in_pieces(const Part& p) {
  const int n_row = p.rows[0].rows, most = int(kBoxFloats / ((p.rows[0].cols + 1) / 2 * 2));
  CHECK(most > 0, "rows of {} columns", p.rows[0].cols);
  each([&](size_t i, Shard& s) { s.b->read(p.rows[i]); });  // what was left is of all rows
  for (int row = 0; row < n_row; row += most) {
    std::array<Rows, kMaxShards> piece;
    for (size_t i = 0; i < shard_.size(); ++i) piece[i] = p.rows[i].rows_at(row, std::min(most, n_row - row));
    const Part part{std::span(piece).first(shard_.size()), p.has};
    sum_few({&part, 1});
  }
}
void CudaLink::sum_in_place(const Part& p) {
  std::array<cuda::Mat, kMaxShards> y;
  cuda::EachPart all;
  each([&](size_t i, Shard& s) { y[i] = s.b->changed(p.rows[i]), all.p[i] = y[i].p; });
  each([&](size_t i, Shard& s) { cuda::all_reduce_in_place(s.b->device().stream(), s.x, y[i], all, p.has); });
}

void CudaLink::sum(std::span<const Rows> rows, unsigned has) {
  const Part p{rows, has};
  if (shard_.size() < 2 || rows[0].rows == 0) return;
  if (is_few({&p, 1})) return sum_few({&p, 1});
  peers_ ? sum_in_place(p) : sum_in_pieces(p);
}
void CudaLink::sum(std::span<const Rows> rows, unsigned has, std::span<const Rows> more, unsigned more_has) {
  const Part both[] = {{rows, has}, {more, more_has}};
  if (shard_.size() > 1 && rows[0].rows > 0 && is_few(both)) return sum_few(both);
  sum(rows, has), sum(more, more_has);
}

void CudaLink::gather(std::span<const Rows> to, std::span<const Rows> from, const ShardRanges& at) {
  const int n_row = from[0].rows;
  if (n_row == 0) return;
  std::array<cuda::Mat, kMaxShards> out, in;
  cuda::Columns cols;
  int widest = 1;
  each([&](size_t i, Shard& s) {
    in[i] = s.b->read(from[i]);
    if (i < to.size()) out[i] = s.b->changed(to[i]);
    cols.at[i] = int(at[i].begin), cols.cols[i] = in[i].cols;
    widest = std::max(widest, in[i].cols);
  });
  const unsigned wants = (1u << to.size()) - 1;
  const int most = int(kBoxFloats / ((widest + 1) / 2 * 2));
  CHECK(most > 0, "rows of {} columns", widest);
  for (int row = 0; row < n_row; row += most)
    each([&](size_t i, Shard& s) {
      const auto piece = [&](cuda::Mat m) {
        if (m.p) m.p += row * m.stride;
        m.rows = std::min(most, n_row - row);
        return m;
      };
      cuda::all_gather_columns(s.b->device().stream(), s.x, piece(out[i]), piece(in[i]), cols, wants);
    });
}

void CudaLink::embed(Cuda& b, Rows x, Weight table, const Step&, float scale, Range own) {
  b.embed_own(x, table, scale, int(own.begin));
}

std::string CudaLink::failure() const {
  const auto name = [&](size_t i) {
    const cuda::DeviceInfo& d = shard_[i].b->device().info();
    return fmt::format("GPU {} ({})", d.id, d.name);
  };
  for (size_t i = 0; i < shard_.size(); ++i) {
    if (!shard_[i].x.failed) continue;
    const uint32_t of = std::atomic_ref(*shard_[i].x.failed).load(std::memory_order_acquire);
    if (of > 0)
      return fmt::format("{} waited {:g} s for {}, which did not come: it failed, or something stopped it", name(i),
                         double(shard_[i].x.timeout_ns) / 1e9, name(of - 1));
  }
  return {};
}
void CudaLink::check() const {
  if (const std::string f = failure(); !f.empty()) CHECK(false, "{}", f);
}

}  // namespace facet
