#include "backend/cuda/graphs.h"

#include <algorithm>
#include <bit>

namespace facet::cuda {

int64_t Graphs::row_bucket(int64_t rows) { return std::max<int64_t>(1024, int64_t(std::bit_ceil(uint64_t(rows)))); }

void Graphs::drop(Captured& c) {
  if (c.exec) cudaGraphExecDestroy(c.exec);  // one that still runs goes when it is done
}
void Graphs::forget() { captured_.clear(drop); }

Graphs::Captured* Graphs::find(const void* pass, const StepShape& shape) {
  if (!on_ || shape.n_tok > kRows || shape.staged) return nullptr;
  return &captured_.at({pass, shape}, drop);
}
void Graphs::begin_capture() { FACET_CUDA_CHECK(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal)); }
void Graphs::end_capture(Captured& c) {
  cudaGraph_t graph = nullptr;
  FACET_CUDA_CHECK(cudaStreamEndCapture(stream_, &graph));
  FACET_CUDA_CHECK(cudaGraphInstantiate(&c.exec, graph, 0));
  FACET_CUDA_CHECK(cudaGraphDestroy(graph));
  ++counters_.captures;
}
void Graphs::launch(Captured& c) {
  FACET_CUDA_CHECK(cudaGraphLaunch(c.exec, stream_));
  ++counters_.launches;
}

// --- asynchronous scheduling

bool Graphs::begin(const Step& s, const StepShape& newest, bool launched) {
  auto& a = ahead_;
  const StepShape& h = s.shape;
  const size_t n = size_t(h.n_tok);
  auto each = [&](auto&& f) {
    for (size_t i = 0; i < n; ++i)
      if (!f(i)) return false;
    return true;
  };
  const bool single =
      h.n_tok <= kRows && h.n_seq == h.n_tok && h.n_out == h.n_tok && h.n_small == h.n_tok && h.n_path == 0 &&
      !h.staged && each([&](size_t i) {
        return s.seq[i] == int(i) && s.out_row[i] == int(i) && s.pos[i] == s.kv_len[i] && s.mask[i] == Mask::kCausal;
      });
  const bool same =
      launched && single && n == a.pos.size() && row_bucket(h.longest) == newest.longest && each([&](size_t i) {
        return s.token[i] == a.ids[i] && s.pos[i] == a.pos[i] + 1 && s.kv_len[i] == a.kv_len[i] + 1 &&
               s.slot[i] == a.slot[i];
      });
  counters_.discarded += launched && !same;
  a.longest = h.longest;
  for (auto [to, from] : {std::pair(&a.pos, s.pos), {&a.kv_len, s.kv_len}, {&a.slot, s.slot}})
    to->assign(from, from + (single ? n : 0));
  if (same) a.running = newest_pass_;
  return same;
}
Graphs::Captured* Graphs::next_graph(int n_row, const StepShape& newest) {
  if (ahead_.pos.empty() || size_t(n_row) != ahead_.pos.size() || row_bucket(ahead_.longest + 1) != newest.longest)
    return nullptr;
  Captured* c = find(newest_pass_, newest);
  return c && c->exec ? c : nullptr;
}

}  // namespace facet::cuda
