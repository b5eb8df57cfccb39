#include "backend/cuda/p2p_copy.h"

#include <algorithm>

#include "backend/cuda/peers.h"
#include "base/check.h"

namespace facet {
namespace {

void record(cudaEvent_t e, cudaStream_t of) { FACET_CUDA_CHECK(cudaEventRecord(e, of)); }
void wait(cudaStream_t who, cudaEvent_t e) { FACET_CUDA_CHECK(cudaStreamWaitEvent(who, e, 0)); }

}  // namespace

P2pCopy::~P2pCopy() {
  for (Stage& s : stage_) {  // copies may be under way
    s.b->make_current();
    cudaStreamSynchronize(s.stream());
  }
  for (Stage& s : stage_) {
    s.b->make_current();
    cudaEventDestroy(s.done);
    for (const cudaEvent_t e : s.read) cudaEventDestroy(e);
  }
  for (const Piece& p : piece_)
    if (p.p) cudaFreeHost(p.p);
}

void P2pCopy::connect(std::span<const std::unique_ptr<Cuda>> stages) {
  const auto make = [](cudaEvent_t& e) { FACET_CUDA_CHECK(cudaEventCreateWithFlags(&e, cudaEventDisableTiming)); };
  for (const auto& b : stages) {
    Stage& s = stage_.emplace_back();
    s.b = b.get();
    s.b->make_current();
    make(s.done);
    for (cudaEvent_t& e : s.read) make(e);
  }
  if (stage_.size() < 2) return;
  peers_ = open_peers(stages);
  if (peers_) return;
  for (Piece& p : piece_) {
    void* memory = nullptr;
    if (cudaHostAlloc(&memory, size_t(kPieceBytes), cudaHostAllocPortable) != cudaSuccess) {
      cudaGetLastError();
      return stage_[0].b->device().fail("page-locked memory that GPUs hand rows over through", size_t(kPieceBytes));
    }
    p.p = static_cast<std::byte*>(memory);
  }
}

void P2pCopy::move(size_t to, Rows y, size_t from, Rows x) {
  Stage &a = stage_[from], &b = stage_[to];
  a.b->make_current();
  const cuda::Mat give = a.b->read(x);  // what verbs left to its reader is done now
  b.b->make_current();
  const cuda::Mat get = b.b->changed(y);
  CHECK(give.stride == get.stride && give.rows == get.rows && x.begin == 0 && y.begin == 0,
        "rows [{}, {}] become [{}, {}]", give.rows, give.cols, get.rows, get.cols);
  const int64_t bytes = int64_t(give.rows) * give.stride * int64_t(sizeof(float));
  peers_ ? directly(b, get.p, a, give.p, bytes) : through_host(b, get.p, a, give.p, bytes);
}

void P2pCopy::directly(Stage& to, float* y, Stage& from, const float* x, int64_t bytes) {
  record(from.done, from.stream());
  wait(to.stream(), from.done);
  FACET_CUDA_CHECK(cudaMemcpyAsync(y, x, size_t(bytes), cudaMemcpyDefault, to.stream()));
  record(to.done, to.stream());
  wait(from.stream(), to.done);
}

void P2pCopy::through_host(Stage& to, float* y, Stage& from, const float* x, int64_t bytes) {
  auto* const get = reinterpret_cast<std::byte*>(y);
  const auto* const give = reinterpret_cast<const std::byte*>(x);
  for (int64_t at = 0; at < bytes; at += kPieceBytes) {
    const size_t i = next_, n = size_t(std::min(kPieceBytes, bytes - at));
    next_ = (next_ + 1) % kPieces;
    Piece& p = piece_[i];
    if (p.reader) wait(from.stream(), p.reader->read[i]);
    FACET_CUDA_CHECK(cudaMemcpyAsync(p.p, give + at, n, cudaMemcpyDeviceToHost, from.stream()));
    record(from.done, from.stream());
    wait(to.stream(), from.done);
    FACET_CUDA_CHECK(cudaMemcpyAsync(get + at, p.p, n, cudaMemcpyHostToDevice, to.stream()));
    record(to.read[i], to.stream());
    p.reader = &to;
  }
}

}  // namespace facet
