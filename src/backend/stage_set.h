#pragma once
#include <array>
#include <cstddef>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "backend/pass.h"
#include "backend/placed.h"
#include "backend/shard_spec.h"

namespace facet {

// A type for each stage of a pipeline: PipelineParallel<StageTypes<Cuda, CpuFast>> has two stages, the first on a GPU.
// PipelineParallel<B> has any number of stages of one type.
template <Backend... B>
struct StageTypes {
  static_assert(sizeof...(B) >= 1 && sizeof...(B) <= size_t(kMaxShards));
};

// A place for a T of each stage; [i] takes the index that a stage's work is called with.
template <class... T>
struct PartOfEach : std::tuple<T...> {
  template <size_t I>
  auto& operator[](std::integral_constant<size_t, I>) {
    return std::get<I>(*this);
  }
  template <size_t I>
  const auto& operator[](std::integral_constant<size_t, I>) const {
    return std::get<I>(*this);
  }
  bool first() const { return bool(std::get<0>(*this)); }
};
template <class T>
struct PartOfAll : std::array<T, kMaxShards> {
  bool first() const { return bool((*this)[0]); }
};
// The same of a thing that one stage has.
template <class T>
struct PartOfOne {
  T part{};
  T& operator[](size_t) { return part; }
  const T& operator[](size_t) const { return part; }
};

// The stages themselves. with(i, f) makes a stage current and calls f(index, backend).
template <class B>
class StageSet {
 public:
  using Have = HasMerged<B>;
  template <template <class> class Of>
  using Parts = PartOfAll<Of<B>>;
  template <template <class> class Of>
  using One = PartOfOne<Of<B>>;
  static constexpr double kRound = B::kRound, kRoundLight = round_light<B>();
  static int64_t rows_bytes(int64_t rows, int64_t cols) { return B::rows_bytes(rows, cols); }
  template <template <class> class Is>
  static constexpr bool kAny = Is<B>::value;

  template <class... Args>
  void open(size_t n, const Args&... args) {
    for (size_t i = 0; i < n; ++i) stage_.push_back(std::make_unique<B>(args...));
  }
  template <class T>
  void open_each(const std::vector<T>& own) {
    for (const T& t : own) stage_.push_back(std::make_unique<B>(t));
  }
  size_t size() const { return stage_.size(); }
  B& at(size_t i) const { return *stage_[i]; }
  template <class F>
  decltype(auto) with(size_t i, F&& f) const {
    make_current(*stage_[i]);
    return f(i, *stage_[i]);
  }
  const auto& all() const { return stage_; }

 private:
  std::vector<std::unique_ptr<B>> stage_;
};
template <class... B>
class StageSet<StageTypes<B...>> {
 public:
  using Have = HasMerged<B...>;
  template <template <class> class Of>
  using Parts = PartOfEach<Of<B>...>;
  template <template <class> class Of>
  using One = PartOfEach<Of<B>...>;
  static constexpr double kRound = std::max({B::kRound...}), kRoundLight = std::max({round_light<B>()...});
  static int64_t rows_bytes(int64_t rows, int64_t cols) { return std::max({B::rows_bytes(rows, cols)...}); }
  template <template <class> class Is>
  static constexpr bool kAny = (Is<B>::value || ...);

  template <class... Args>
  void open(size_t n, const Args&... args) {
    CHECK(n == sizeof...(B), "{} stages of {} types", n, sizeof...(B));
    stage_ = {std::make_unique<B>(args...)...};
  }
  // A tuple of arguments for each stage.
  template <class... Own>
  void open_each(const Own&... own) {
    static_assert(sizeof...(Own) == sizeof...(B));
    stage_ = {std::unique_ptr<B>(new B(std::make_from_tuple<B>(own)))...};
  }
  size_t size() const { return sizeof...(B); }
  template <size_t I>
  auto& at() const {
    return *std::get<I>(stage_);
  }
  template <class F>
  decltype(auto) with(size_t i, F&& f) const {
    return with_from<0>(i, f);
  }
  const auto& all() const { return stage_; }

 private:
  template <size_t I, class F>
  decltype(auto) with_from(size_t i, F& f) const {
    if constexpr (I + 1 < sizeof...(B))
      if (i != I) return with_from<I + 1>(i, f);
    make_current(at<I>());
    return f(std::integral_constant<size_t, I>(), at<I>());
  }
  std::tuple<std::unique_ptr<B>...> stage_;
};

}  // namespace facet
