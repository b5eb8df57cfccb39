#pragma once
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <map>
#include <vector>

#include "backend/cpu/cpu_ref.h"
#include "backend/lockstep.h"
#include "backend/traced.h"

// Planted bugs: backends that tests must catch, so that a test which passes means something.
namespace facet::test {

template <class Base>
struct RingOneRowShort : Base {
  using Base::Base;
  using typename Base::Rows, typename Base::KvLayer;
  static KvLayer shorter(KvLayer kv) {
    if (kv.window) kv.cap -= 1;
    return kv;
  }
  void kv_append(KvLayer kv, Rows k, Rows v, const Step& s) { Base::kv_append(shorter(kv), k, v, s); }
  void kv_settle(KvLayer kv, const Step& s) { Base::kv_settle(shorter(kv), s); }
  void attend(Rows o, Rows q, KvLayer kv, const Step& s, AttnSpec a) { Base::attend(o, q, shorter(kv), s, a); }
};

// No bug: memory for rows is full of NaN when it is new.
template <class Base>
struct NewMemoryIsNaN : Base {
  using Base::Base;
  using typename Base::Rows;
  Rows new_rows(int rows, int cols) {
    const Rows r = Base::new_rows(rows, cols);
    for (int t = 0; t < rows; ++t) std::fill_n(r.row(t), cols, std::numeric_limits<float>::quiet_NaN());
    return r;
  }
};

template <class Base>
struct LeavesARowOut : Base {  // the last row of gate and up, of several, stays what it was
  using Base::Base;
  using typename Base::Rows, typename Base::Weight;
  void gate_up(Rows y, Rows h, Weight gate, Weight up, Act act) {
    const int n = std::max(1, y.rows - 1);
    Base::gate_up(y.view(n, y.cols), h.view(n, h.cols), gate, up, act);
  }
};

template <class Base>
struct WindowOneTooWide : Base {
  using Base::Base;
  using typename Base::Rows, typename Base::KvLayer;
  void attend(Rows o, Rows q, KvLayer kv, const Step& s, AttnSpec a) {
    if (a.window) a.window += 1;
    Base::attend(o, q, kv, s, a);
  }
};

template <class Base>
struct RotatesEverything : Base {  // full layers rotate every pair, not a quarter
  using Base::Base, Base::upload;
  typename Base::Freqs upload(std::span<const double> freqs) {
    std::vector<double> all(freqs.begin(), freqs.end());
    for (size_t i = 0; i < all.size(); ++i)
      if (all[i] == 0) all[i] = std::pow(1e6, -double(i) / double(all.size()));
    return Base::upload(std::span<const double>(all));
  }
};

template <class Base>
struct RotatesWrongHalf : Base {  // shared rows get the rotated channels of K with their halves exchanged
  using Base::Base;
  using typename Base::Rows, typename Base::KvLayer;
  void kv_append(KvLayer kv, Rows k, Rows v, const Step& s) {
    const int half = kv.head_dim / 2;
    for (int t = 0; kv.shared && t < k.rows; ++t)
      for (float* h = k.row(t); h < k.row(t) + k.cols; h += kv.head_dim) std::swap_ranges(h, h + half, h + half);
    Base::kv_append(kv, k, v, s);
  }
};

template <class Base>
struct KeepsKeysAsValues : Base {  // keys in the type of values, where they have two
  using Base::Base;
  using typename Base::Rows, typename Base::KvLayer;
  void kv_append(KvLayer kv, Rows k, Rows v, const Step& s) {
    kv.k_type = kv.v_type;
    Base::kv_append(kv, k, v, s);
  }
};

template <class Base>
struct ValuesOfNextRow : Base {  // of shared rows
  using Base::Base;
  using typename Base::Rows, typename Base::KvLayer;
  void attend(Rows o, Rows q, KvLayer kv, const Step& s, AttnSpec a) {
    if (kv.shared) kv.v += kv.v_row;
    Base::attend(o, q, kv, s, a);
  }
};

template <class Base>
struct LeavesLastBlockOut : Base {  // of shared rows, when it is not whole: committed ones beyond a multiple of 16
  using Base::Base;
  using typename Base::Rows, typename Base::KvLayer;
  void attend(Rows o, Rows q, KvLayer kv, const Step& s, AttnSpec a) {
    std::vector<int32_t> len(s.kv_len, s.kv_len + s.shape.n_seq);
    for (int32_t& n : len)
      if (kv.shared) n = n / 16 * 16;
    Step wrong = s;
    wrong.kv_len = len.data();
    Base::attend(o, q, kv, wrong, a);
  }
};

template <class Base>
struct LeaksNeighbour : Base {  // reads every sequence's rows from the first slot
  using Base::Base;
  using typename Base::Rows, typename Base::KvLayer;
  void attend(Rows o, Rows q, KvLayer kv, const Step& s, AttnSpec a) {
    const std::vector<int32_t> slot(size_t(s.shape.n_seq), s.slot[0]);
    Step wrong = s;
    wrong.slot = slot.data();
    Base::attend(o, q, kv, wrong, a);
  }
};

template <class Base>
struct KeepsRejected : Base {  // takes every row ever written for a committed one
  using Base::Base;
  using typename Base::Rows, typename Base::KvLayer;
  void attend(Rows o, Rows q, KvLayer kv, const Step& s, AttnSpec a) {
    std::vector<int32_t> len(s.kv_len, s.kv_len + s.shape.n_seq);
    for (int i = 0; i < s.shape.n_seq; ++i) {
      auto& [len_before, high] = written[{kv.k, s.slot[i]}];
      const int n = s.q_begin[i + 1] - s.q_begin[i];
      const int there = mapped(kv, s.kv_len[i] + n);
      if (s.kv_len[i] > len_before && s.kv_len[i] <= high && high + n <= there)
        len[size_t(i)] = high;  // the same sequence's next step
      len_before = s.kv_len[i], high = s.kv_len[i] + n;
    }
    Step wrong = s;
    wrong.kv_len = len.data();
    Base::attend(o, q, kv, wrong, a);
  }
  // Rows that have memory when so many do: of a full layer's, whole pages (host_page_bytes; here all full layers are
  // alike).
  static int mapped(const KvLayer& kv, int64_t rows) {
    if (kv.window > 0) return std::numeric_limits<int>::max();  // rings have all of it
    const int64_t page = std::clamp<int64_t>(int64_t(std::bit_ceil(uint64_t(64 * kv.k_row))), 4096, 1 << 18);
    auto whole = [&](int64_t row) { return int((rows * row + page - 1) / page * page / row); };
    return std::min(whole(kv.k_row), whole(kv.v_row));
  }
  std::map<std::pair<std::byte*, int>, std::pair<int, int>> written;
};

}  // namespace facet::test
