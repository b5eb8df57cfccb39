#pragma once
#include <cstddef>
#include <cstdint>

#include "backend/step.h"
#include "formats/kv_codec.h"

namespace facet {

// One layer's K/V rows for every sequence slot: a view, owned by the cache. The same struct describes host and
// device memory. A row is n_head head vectors of head_dim elements, encoded by formats/kv_codec.
//
//   full layer       slot of row r = r                   cap = planned context
//   sliding layer    slot of row r = r mod cap           cap >= window - 1 + margin: rows in flight never
//                                                        overwrite a row some token of the same step can see
//
// A sequence that brings more than `margin` tokens to one step is staged on sliding layers: kv_append writes its
// rows to the staging area (one for all sliding layers, indexed by token of the step), attend reads them there and
// the older ones in the ring, and kv_settle moves the last of them into the ring once no token of the step needs
// the rows they replace.
//
// A full layer may have shared rows (formats/kv_codec): K and V of a head in one. v then points into the rows of k, the
// strides are k's, and both types are one.
struct KvLayer {
  std::byte* k = nullptr;
  std::byte* v = nullptr;
  std::byte* k_stage = nullptr;
  std::byte* v_stage = nullptr;
  int64_t cap = 0;                 // rows per sequence slot
  int64_t k_row = 0, v_row = 0;    // bytes between rows
  int64_t k_slot = 0, v_slot = 0;  // bytes between sequence slots
  int n_head = 0, head_dim = 0;
  int window = 0;  // 0: full
  int margin = 0;
  bool shared = false;
  KvType k_type = KvType::kF16, v_type = KvType::kF16;

  // Bytes between head vectors of a row, and of all that a row takes.
  FACET_HD int64_t k_head() const { return k_row / n_head; }
  FACET_HD int64_t v_head() const { return v_row / n_head; }
  FACET_HD int64_t row_bytes() const { return shared ? k_row : k_row + v_row; }
};

FACET_HD inline bool kv_staged(const KvLayer& l, int n_tok_of_seq) { return l.window > 0 && n_tok_of_seq > l.margin; }

FACET_HD inline int64_t kv_place(const KvLayer& l, int64_t row) { return l.window > 0 ? row % l.cap : row; }

// Byte addresses of a sequence's row, wherever it is during step s. q is the sequence's index in the step.
struct KvRow {
  std::byte* k;
  std::byte* v;
};
FACET_HD inline KvRow kv_ring_row(const KvLayer& l, int slot, int64_t row) {
  const int64_t at = kv_place(l, row);
  return {l.k + slot * l.k_slot + at * l.k_row, l.v + slot * l.v_slot + at * l.v_row};
}
FACET_HD inline KvRow kv_row(const KvLayer& l, const Step& s, int q, int64_t row) {
  const int64_t in_step = row - s.kv_len[q];
  if (in_step >= 0 && kv_staged(l, s.q_begin[q + 1] - s.q_begin[q])) {
    const int64_t t = s.q_begin[q] + in_step;
    return {l.k_stage + t * l.k_row, l.v_stage + t * l.v_row};
  }
  return kv_ring_row(l, s.slot[q], row);
}

}  // namespace facet
