#pragma once
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "spec/dflash.h"
#include "spec/mtp.h"
#include "support/harness.h"

namespace facet::test {

// x as a row of the type gives it back.
inline void through_type(KvType t, float* x, int head_dim) {
  std::vector<std::byte> row(kv_row_bytes(t, head_dim));
  kv_encode(t, x, row.data(), head_dim);
  kv_decode(t, row.data(), x, head_dim);
  if (kv_rotated(t)) kv_unrotate(x, head_dim);
}

// A target that exists only as an embedding, a head and K/V rows: what a drafter reads of one. tests/data/drafters is
// made for it (tools/make_drafter_fixtures.py).
template <class B>
class StandIn {
 public:
  static constexpr int kD = 64, kV = 128, kWindow = 8;

  StandIn(const SafetensorsFile& golden, KvPlan plan) : golden_(golden), embedding_(*golden.find("embedding")) {
    // Two layers of each kind, so that there is a wrong donor of the right kind.
    for (const bool full : {false, true, false, true, false, true}) {
      LayerCfg c{.n_kv_head = full ? 1 : 2, .head_dim = full ? 64 : 32, .d_ff = 64, .window = full ? 0 : kWindow};
      c.kv_source = c.settles = m.n_layer();
      m.layer.push_back(c);
    }
    m.d_model = kD, m.n_q_head = 4, m.n_vocab = kV, m.n_ctx_train = 4096, m.embed_scale = 8, m.softcap = 30;
    w.tok_embd = w.head = b.upload(embedding_);
    cache = must(HostKvCache::create(m, plan));
    kv.assign(cache->layers().begin(), cache->layers().end());
  }
  TargetView<B> view() { return {b, m, w, kv, cache->plan()}; }

  // Rows [0, n) of the golden in the last layer of each kind, other values in the others; through `as`, if one is
  // given.
  void fill_kv(int n, int slot = 0, std::optional<KvType> as = {}) {
    for (int at = 0; at < n; at += 8) {
      must(cache->prepare(slot, std::min(8, n - at)));
      cache->commit(slot, std::min(8, n - at));
    }
    for (int l = 0; l < m.n_layer(); ++l) {
      const std::string kind = m.layer[size_t(l)].window ? "sliding_attention" : "full_attention";
      auto k = tensor_values<float>(golden_, "k_" + kind), v = tensor_values<float>(golden_, "v_" + kind);
      const KvLayer& to = cache->layers()[size_t(l)];
      const int E = to.head_dim, T = int(k.size()) / (to.n_head * E);
      for (int r = 0; r < n; ++r)
        for (int h = 0; h < to.n_head; ++h) {
          float *ke = &k[size_t((h * T + r) * E)], *ve = &v[size_t((h * T + r) * E)];
          if (l < m.n_layer() - 2) std::reverse(ke, ke + E), std::reverse(ve, ve + E);
          if (as) through_type(*as, ke, E), through_type(*as, ve, E);
          const KvRow at = kv_ring_row(to, slot, r);
          kv_encode(to.k_type, ke, at.k + h * int64_t(kv_row_bytes(to.k_type, E)), E);
          kv_encode(to.v_type, ve, at.v + h * int64_t(kv_row_bytes(to.v_type, E)), E);
        }
    }
  }
  typename B::Rows rows_of(const std::string& name, int cols) {
    const auto v = tensor_values<float>(golden_, name);
    auto r = b.new_rows(int(v.size()) / cols, cols);
    b.from_host(r, v);
    return r;
  }

  B b;
  ModelCfg m;
  ModelW<B> w;
  std::unique_ptr<KvCache> cache;
  std::vector<typename B::KvLayer> kv;

 private:
  const SafetensorsFile& golden_;
  TensorView embedding_;
};

// An exact cache whose rows went through another type first.
template <class Base>
struct ThroughType : Base {
  using Base::Base;
  using typename Base::Rows, typename Base::KvLayer;
  static inline KvType type = KvType::kF32;
  void kv_append(KvLayer kv, Rows k, Rows v, const Step& s) {
    for (int t = 0; t < s.shape.n_tok; ++t)
      for (int h = 0; h < kv.n_head; ++h)
        for (const Rows& r : {k, v}) through_type(type, r.row(t) + h * kv.head_dim, kv.head_dim);
    Base::kv_append(kv, k, v, s);
  }
};

inline KvPlan exact_plan(int max_seq = 1) {
  return {.k = KvType::kF32, .v = KvType::kF32, .max_seq = max_seq, .max_ctx = 256, .max_step = 16, .margin = 8};
}

// A copy of a drafter's folder with some text of its config.json replaced.
class Folder {
 public:
  Folder(const std::string& from, const std::string& find = "", const std::string& put = "") {
    path_ = (std::filesystem::temp_directory_path() /
             ("facet-drafter-" + std::to_string(getpid()) + "-" + std::to_string(count_++)))
                .string();
    std::filesystem::copy(from, path_, std::filesystem::copy_options::recursive);
    if (!find.empty()) edit("config.json", find, put);
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  Folder(const Folder&) = delete;
  const std::string& path() const { return path_; }
  void edit(const std::string& name, const std::string& find, const std::string& put) {
    const std::string file = path_ + "/" + name;
    std::ifstream in(file, std::ios::binary);
    std::string text((std::istreambuf_iterator<char>(in)), {});
    const size_t at = text.find(find);
    ASSERT_NE(at, std::string::npos) << find;
    text.replace(at, find.size(), put);
    std::ofstream(file, std::ios::binary) << text;
  }

 private:
  std::string path_;
  static inline int count_ = 0;
};

}  // namespace facet::test
