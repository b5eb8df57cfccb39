#pragma once
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backend/cpu/cpu_ref.h"
#include "engine/runner.h"
#include "formats/gguf.h"
#include "formats/safetensors.h"
#include "model/gemma4_config.h"
#include "support/must.h"

namespace facet::test {

inline std::string data_path(const std::string& name) { return std::string(FACET_TEST_DATA) + "/" + name; }

inline bool bitwise_equal(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

struct Difference {
  double max = 0, rms = 0;
  int same_top = 0, rows = 0;  // rows whose largest element is the same
};
inline Difference compare(std::span<const float> got, std::span<const float> want, int cols) {
  Difference d;
  double sum = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    const double e = std::abs(double(got[i]) - double(want[i]));
    if (!(e <= d.max)) d.max = e;
    sum += e * e;
  }
  d.rms = std::sqrt(sum / double(want.size()));
  d.rows = int(want.size()) / cols;
  for (int r = 0; r < d.rows; ++r) {
    auto top = [&](std::span<const float> v) {
      return std::max_element(v.begin() + r * cols, v.begin() + (r + 1) * cols) - v.begin();
    };
    d.same_top += top(got) == top(want);
  }
  return d;
}

// A model on a backend, without the engine: tests decide what a step holds.
template <class B>
class Harness {
 public:
  Harness(const std::string& path, KvPlan kv, int max_out = 0) : Harness(path, kv, max_out, 1) {}
  // More arguments are the backend's, most often the number of threads.
  template <class... Args>
  Harness(const std::string& path, KvPlan kv, int max_out, Args... args)
      : file_(must(GgufFile::open(path))), cfg(must(gemma4_config(file_))) {
    kv.max_ctx = std::max(kv.max_ctx, 1);
    runner_ = must(Runner<B>::open(
        file_, cfg, {.kv = kv, .max_out = max_out > 0 ? max_out : kv.max_step, .max_soft = kv.max_step}, args...));
  }
  static inline const KvPlan kExact{
      .k = KvType::kF32, .v = KvType::kF32, .share = true, .max_ctx = 512, .max_step = 128, .margin = 16};
  explicit Harness(const std::string& path) : Harness(path, kExact) {}

  Runner<B>& runner() { return *runner_; }
  KvCache& cache() { return *runner_->cache; }
  B& backend() { return runner_->b; }

  void begin() { runner_->steps.begin(); }
  void add(SeqStep q) {
    must(cache().prepare(q.slot, int(q.token.size())));
    runner_->add(q);
  }
  std::vector<float> forward() {
    const auto logits = runner_->forward();
    return backend().to_host(logits);
  }
  // All logits of ids, in chunks of the given sizes (the last repeats), starting from an empty slot.
  std::vector<float> logits(std::span<const int32_t> ids, std::vector<int> chunks, int slot = 0) {
    cache().clear(slot);
    return more_logits(ids, chunks, slot);
  }
  std::vector<float> more_logits(std::span<const int32_t> ids, std::vector<int> chunks, int slot = 0) {
    std::vector<float> all;
    size_t at = 0, c = 0;
    while (at < ids.size()) {
      const size_t n = std::min(size_t(chunks[std::min(c++, chunks.size() - 1)]), ids.size() - at);
      begin();
      add({.slot = slot, .token = ids.subspan(at, n), .out = Out::kAll});
      const auto piece = forward();
      cache().commit(slot, int(n));
      all.insert(all.end(), piece.begin(), piece.end());
      at += n;
    }
    return all;
  }

 private:
  GgufFile file_;

 public:
  ModelCfg cfg;

 private:
  std::unique_ptr<Runner<B>> runner_;
};

template <class T>
std::vector<T> tensor_values(const SafetensorsFile& f, const std::string& name) {
  const TensorView* t = f.find(name);
  if (!t) {
    ADD_FAILURE() << "no tensor " << name;
    std::abort();
  }
  std::vector<T> v(t->data.size() / sizeof(T));
  std::memcpy(v.data(), t->data.data(), t->data.size());
  return v;
}

}  // namespace facet::test
