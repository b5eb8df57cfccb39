#include "backend/cuda/step_arrays.h"

#include <cstring>
#include <utility>

#include "backend/cuda/kernels/ops.h"

namespace facet::cuda {

namespace {
// Offsets of the arrays for `cap` tokens and as many sequences. end: of what every step has; behind it what steps with
// pictures or sound have; the last one is the size.
struct Offsets {
  size_t token, ancestor, pos, seq, out_row, q_begin, kv_len, slot, mask, end, soft, ahead, size;
  explicit Offsets(int cap) {
    const size_t n = size_t(cap), i = n * 4;
    token = 0;
    ancestor = (i + 15) / 16 * 16;
    pos = ancestor + n * 8, seq = pos + i, out_row = seq + i, q_begin = out_row + i, kv_len = q_begin + i + 16,
    slot = kv_len + i;
    mask = slot + i;
    end = (mask + n + 15) / 16 * 16;
    soft = end, ahead = soft + i;
    size = (ahead + i + 15) / 16 * 16;
  }
};
}  // namespace

void StepArrays::reserve(int max_tok) {
  auto make = [&](Place& p, int cap) {
    if (p.cap >= cap) return;
    for (std::byte*& h : p.host)
      if (h) cudaFreeHost(std::exchange(h, nullptr));
    p.cap = cap;
    const size_t bytes = Offsets(cap).size;
    grow(device_, p.device, bytes, "arrays of a step");
    for (std::byte*& h : p.host) h = static_cast<std::byte*>(device_.pinned(bytes, "arrays of a step"));
  };
  make(small_, kSmall);
  if (max_tok > kSmall) make(large_, max_tok);
}
StepArrays::~StepArrays() {
  for (Place* p : {&small_, &large_})
    for (std::byte* h : p->host)
      if (h) cudaFreeHost(h);
}
Step StepArrays::upload(Place& p, const Step& s, bool keep_tokens) {
  CHECK(s.shape.n_tok <= p.cap && s.shape.n_seq <= p.cap, "a step of {} tokens, {} planned", s.shape.n_tok, p.cap);
  const Offsets o(p.cap);
  const cudaStream_t stream = device_.stream();
  ++p.unread, ++p.later;
  std::byte* h = p.host[size_t(p.next)];
  p.next = (p.next + 1) % kRing;
  const size_t T = size_t(s.shape.n_tok), S = size_t(s.shape.n_seq), O = size_t(s.shape.n_out);
  auto put = [&](size_t at, const void* from, size_t bytes) { std::memcpy(h + at, from, bytes); };
  if (s.ancestor) put(o.ancestor, s.ancestor, T * 8);
  put(o.token, s.token, T * 4), put(o.pos, s.pos, T * 4), put(o.seq, s.seq, T * 4), put(o.out_row, s.out_row, O * 4);
  put(o.q_begin, s.q_begin, (S + 1) * 4), put(o.kv_len, s.kv_len, S * 4), put(o.slot, s.slot, S * 4),
      put(o.mask, s.mask, S);
  const bool media = s.shape.n_soft > 0 || s.shape.ahead;
  if (media) put(o.soft, s.soft, T * 4), put(o.ahead, s.ahead, T * 4);
  const size_t first = keep_tokens ? o.ancestor : 0, end = media ? o.size : o.end;
  if (&p == &small_)  // a copy would take longer to begin
    fetch(stream, p.device + first, h + first, end - first);
  else
    FACET_CUDA_CHECK(cudaMemcpyAsync(p.device + first, h + first, end - first, cudaMemcpyHostToDevice, stream));
  auto at = [&](size_t offset) { return reinterpret_cast<const int32_t*>(p.device + offset); };
  Step d = s;
  d.ancestor = reinterpret_cast<const uint64_t*>(p.device + o.ancestor);
  int32_t* const kept = std::exchange(token_, reinterpret_cast<int32_t*>(p.device + o.token));
  if (keep_tokens && kept != token_)
    FACET_CUDA_CHECK(cudaMemcpyAsync(token_, kept, T * 4, cudaMemcpyDeviceToDevice, stream));
  d.token = token_, d.pos = at(o.pos), d.seq = at(o.seq), d.out_row = at(o.out_row);
  d.q_begin = at(o.q_begin), d.kv_len = at(o.kv_len), d.slot = at(o.slot);
  d.mask = reinterpret_cast<const Mask*>(p.device + o.mask);
  d.soft = at(o.soft), d.ahead = at(o.ahead);
  return d;
}

}  // namespace facet::cuda
