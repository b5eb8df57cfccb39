#pragma once
#include <algorithm>
#include <map>
#include <vector>

#include "backend/cpu/cpu_ref.h"
#include "backend/lockstep.h"
#include "backend/traced.h"

// Planted bugs: backends that tests must catch, so that a test which passes means something.
namespace facet::test {

struct RingOneRowShort : CpuRef {
  using CpuRef::CpuRef;
  static KvLayer shorter(KvLayer kv) {
    if (kv.window) kv.cap -= 1;
    return kv;
  }
  void kv_append(KvLayer kv, Rows k, Rows v, const Step& s) { CpuRef::kv_append(shorter(kv), k, v, s); }
  void kv_settle(KvLayer kv, const Step& s) { CpuRef::kv_settle(shorter(kv), s); }
  void attend(Rows o, Rows q, KvLayer kv, const Step& s, AttnSpec a) { CpuRef::attend(o, q, shorter(kv), s, a); }
};

struct WindowOneTooWide : CpuRef {
  using CpuRef::CpuRef;
  void attend(Rows o, Rows q, KvLayer kv, const Step& s, AttnSpec a) {
    if (a.window) a.window += 1;
    CpuRef::attend(o, q, kv, s, a);
  }
};

struct RotatesEverything : CpuRef {  // full layers rotate every pair, not a quarter
  using CpuRef::CpuRef;
  void head_norm_rope(Rows x, Vec gain, Freqs f, const Step& s, float eps) {
    all.assign(f.p, f.p + f.n);
    for (int i = 0; i < f.n; ++i)
      if (all[size_t(i)] == 0) all[size_t(i)] = std::pow(1e6, -double(i) / f.n);
    CpuRef::head_norm_rope(x, gain, {all.data(), f.n}, s, eps);
  }
  std::vector<double> all;
};

struct LeaksNeighbour : CpuRef {  // reads every sequence's rows from the first slot
  using CpuRef::CpuRef;
  void attend(Rows o, Rows q, KvLayer kv, const Step& s, AttnSpec a) {
    const std::vector<int32_t> slot(size_t(s.shape.n_seq), s.slot[0]);
    Step wrong = s;
    wrong.slot = slot.data();
    CpuRef::attend(o, q, kv, wrong, a);
  }
};

struct KeepsRejected : CpuRef {  // takes every row ever written for a committed one
  using CpuRef::CpuRef;
  void attend(Rows o, Rows q, KvLayer kv, const Step& s, AttnSpec a) {
    std::vector<int32_t> len(s.kv_len, s.kv_len + s.shape.n_seq);
    for (int i = 0; i < s.shape.n_seq; ++i) {
      int& high = written[{kv.k, s.slot[i]}];
      if (s.kv_len[i] > 0) len[size_t(i)] = std::max(len[size_t(i)], high);
      high = s.kv_len[i] + s.q_begin[i + 1] - s.q_begin[i];
    }
    Step wrong = s;
    wrong.kv_len = len.data();
    CpuRef::attend(o, q, kv, wrong, a);
  }
  std::map<std::pair<std::byte*, int>, int> written;
};

}  // namespace facet::test
