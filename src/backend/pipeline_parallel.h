#pragma once
#include <algorithm>
#include <bit>
#include <deque>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "backend/buffer_rows.h"
#include "backend/optional.h"
#include "backend/pass.h"
#include "backend/placed.h"
#include "backend/stage_of.h"
#include "backend/stage_set.h"
#include "base/check.h"

namespace facet {

// Copies rows from one stage to another, if the host can read both; stages on devices have a way of their own
// (cuda/p2p_copy.h).
template <class B>
struct HostMove {
  // y of stage `to` becomes x of stage `from`.
  template <class To, class From>
  void move(size_t /*to*/, To y, size_t /*from*/, From x) {
    static_assert(HostRows<To> && HostRows<From>);
    for (int t = 0; t < y.rows; ++t) std::copy_n(x.row(t), x.cols, y.row(t));
  }
};

// Which optional parts a stage has, as types (kAny).
#define FACET_OPTIONAL(concept_name) \
  template <class S>                 \
  struct Is##concept_name : std::bool_constant<concept_name<S>> {};
FACET_OPTIONAL(TakesFiles)
FACET_OPTIONAL(BeginsSteps)
FACET_OPTIONAL(CapturesPasses)
FACET_OPTIONAL(Finishes)
FACET_OPTIONAL(CountsSelected)
#undef FACET_OPTIONAL

// The associated types of PipelineParallel. B: a backend, or StageTypes.
template <class B>
struct PipelineParallelTypes {
  using Set = StageSet<B>;
  using Have = typename Set::Have;
  template <class S>
  using RowsOf = typename S::Rows;
  template <class S>
  using WeightOf = typename S::Weight;
  template <class S>
  using VecOf = typename S::Vec;
  template <class S>
  using FreqsOf = typename S::Freqs;
  template <class S>
  using TableOf = typename S::Table;
  template <class S>
  using KvLayerOf = typename S::KvLayer;
  template <class S>
  using IdsOf = typename S::Ids;
  template <class S>
  using ScoresOf = typename S::Scores;

  struct Buffer {
    typename Set::template Parts<RowsOf> part{};
    std::vector<uint8_t> has;  // bit i: stage i has this row
    int rows = 0, cols = 0;
  };
  using Rows = BufferRows<Buffer>;
  struct Weight {
    typename Set::template One<WeightOf> part{};
    size_t stage = 0;
    DType type = DType::kF32;
    int64_t n_out = 0, n_in = 0, n_stack = 1;
    const char* name = "";
    explicit operator bool() const { return n_out > 0; }
  };
  template <template <class> class Of>
  struct Copies {
    typename Set::template Parts<Of> part{};
    explicit operator bool() const { return part.first(); }
  };
  using Vec = Copies<VecOf>;
  using Table = Copies<TableOf>;
  struct Freqs {
    typename Set::template Parts<FreqsOf> part{};
  };
  struct KvLayer {
    typename Set::template One<KvLayerOf> part{};
    size_t stage = 0;
    int head_dim = 0;
    int64_t bytes = 0;  // of a row
    int64_t row_bytes() const { return bytes; }
  };
  template <template <class> class Of>
  struct Values {  // the host reads those of the stage that chose
    typename Set::template Parts<Of> part{};
    const Set* set = nullptr;
    size_t* stage = nullptr;
    auto operator[](size_t i) const {
      return set->with(*stage, [&](auto at, auto&) { return part[at][i]; });
    }
  };
  using Ids = Values<IdsOf>;
  using Scores = Values<ScoresOf>;
};

// Parallelism by layers: one backend made of several, each of which has some layers with their K/V rows. A verb runs on
// the stage that has its weight, or the layer's K/V rows, or else its input; rows are copied when a verb reads them on
// another stage. Nothing is computed in another way: every bit is that of one backend, where all stages are of one type.
//
// Stages may be of different types (StageTypes): some layers on a GPU, the others on the CPU.
//
// Drafters come last: take_drafters() puts them and their K/V rows on the last stage, which has the rows that an MTP
// head reads and the hidden state that it begins with.
//
// The host notes, row by row, which stages have a row when a verb writes it.
template <class B, class Move = HostMove<B>>
class PipelineParallel : public PlacedVerbs<PipelineParallel<B, Move>, PipelineParallelTypes<B>> {
  using Types = PipelineParallelTypes<B>;
  using Verbs = PlacedVerbs<PipelineParallel, Types>;
  using Set = typename Types::Set;
  using Buffer = typename Types::Buffer;
  template <template <class> class Is>
  static constexpr bool kAny = Set::template kAny<Is>;

 public:
  using typename Verbs::Ids, typename Verbs::KvLayer, typename Verbs::Scores, typename Verbs::Table;
  using typename Verbs::Rows, typename Verbs::Weight, typename Verbs::Vec, typename Verbs::Freqs;

  // layers: of each stage, in order. Each stage's backend gets the same arguments.
  template <class... Args>
  explicit PipelineParallel(const std::vector<int>& layers, const Args&... args) : layers_(layers) {
    set_.open(layers.size(), args...);
    begin();
  }
  // Each stage's backend gets an argument of its own: the GPU that it is on.
  template <class T>
  explicit PipelineParallel(const std::vector<int>& layers, const std::vector<T>& own) : layers_(layers) {
    set_.open_each(own);
    begin();
  }
  // Each gets arguments of its own.
  template <class... First, class... More>
  PipelineParallel(const std::vector<int>& layers, const std::tuple<First...>& first, const More&... more)
      : layers_(layers) {
    set_.open_each(first, more...);
    begin();
  }

  size_t n_stage() const { return set_.size(); }
  auto& stage(size_t i) { return set_.at(i); }  // of stages of one type
  // f(index, backend) on a stage.
  template <class F>
  decltype(auto) with_stage(size_t i, F&& f) {
    return set_.with(i, f);
  }
  Move& way() { return move_; }
  size_t stage_of(int layer) const { return drafters_ ? last() : facet::stage_of(layers_, layer); }
  void take_drafters() { drafters_ = true; }

  Weight upload(const TensorView& t) {
    names_.push_back(t.name);
    const size_t at = drafters_ ? last() : facet::stage_of(layers_, t.name);
    Weight w{.stage = at,
             .type = t.type,
             .n_out = t.ne[1],
             .n_in = t.ne[0],
             .n_stack = t.ne[2],
             .name = names_.back().c_str()};
    set_.with(at, [&](auto i, auto& b) { w.part[i] = b.upload(t); });
    return w;
  }
  Vec upload(std::span<const float> v) {
    return of_each<Vec>([&](auto& b) { return b.upload(v); });
  }
  Table upload(std::span<const int32_t> v) {
    return of_each<Table>([&](auto& b) { return b.upload(v); });
  }
  Freqs upload(std::span<const double> v) {
    return of_each<Freqs>([&](auto& b) { return b.upload(v); });
  }
  Rows new_rows(int rows, int cols) {
    Buffer& x = buffers_.emplace_back();
    x.rows = rows, x.cols = cols, x.has.assign(size_t(rows), 1);
    each([&](auto i, auto& b) { x.part[i] = b.new_rows(rows, cols); });
    return {&x, rows, cols};
  }
  Ids new_ids(int n) {
    return chosen<Ids>([&](auto& b) { return b.new_ids(n); });
  }
  Scores new_scores(int n) {
    return chosen<Scores>([&](auto& b) { return b.new_scores(n); });
  }
  void reserve(const BackendLimits& l) {
    each([&](auto, auto& b) { b.reserve(l); });
  }
  static constexpr double kRound = Set::kRound, kRoundLight = Set::kRoundLight;
  static int64_t rows_bytes(int64_t rows, int64_t cols) { return Set::rows_bytes(rows, cols); }

  std::vector<float> to_host(Rows x) {
    return set_.with(where(x), [&](auto i, auto& b) {
      fetch(x, i);
      return b.to_host(all_of(x, i));
    });
  }
  void from_host(Rows x, std::span<const float> values) {
    set_.with(where(x), [&](auto i, auto& b) {
      if (x.piece) fetch(x, i);  // the columns beside it
      leave(x, i);
      b.from_host(all_of(x, i), values);
    });
  }
  Status status() const {
    Status all = Ok{};
    each([&](auto, const auto& b) {
      if (all) all = memory_status(b);
    });
    return all;
  }
  void make_current() {}  // before each stage's work
  void take_file(std::span<const TensorView> tensors) requires(kAny<IsTakesFiles>) {
    each([&]<class S>(auto, S& b) {
      if constexpr (TakesFiles<S>) b.take_file(tensors);
    });
  }
  void begin_step(const Step& s) requires(kAny<IsBeginsSteps>) {
    each([&]<class S>(auto, S& b) {
      if constexpr (BeginsSteps<S>) b.begin_step(s);
    });
  }
  // Launched verb by verb: no pass is captured over several stages.
  template <class Pass>
  Rows replay(const void*, Pass&& pass) requires(kAny<IsCapturesPasses>) {
    each([&]<class S>(auto, S& b) {
      if constexpr (CapturesPasses<S>) b.begin_pass(S::Way::kRun);
    });
    const Rows out = pass();
    each([&]<class S>(auto, S& b) {
      if constexpr (CapturesPasses<S>) b.end_pass(S::Way::kRun);
    });
    return out;
  }
  void finish() requires(kAny<IsFinishes>) {
    each([&]<class S>(auto, S& b) {
      if constexpr (Finishes<S>) b.finish();
    });
  }
  Selected take_selected(int slot) requires(kAny<IsCountsSelected>) {
    Selected all;
    each([&]<class S>(auto, S& b) {
      if constexpr (CountsSelected<S>) all.add(b.take_selected(slot));
    });
    return all;
  }

  // --- Verbs: placed.h's. next_tokens is none of them: the first stage would need what the last one chose.

  // On the stage of the first weight; without one that of the K/V layer; else of the first rows that are only read, or
  // of the first that are changed.
  template <class F, class... A>
  void place(F&& verb, const A&... all) {
    At at;
    (note_place(all, at), ...);
    const size_t stage = at.stage();
    (note_choice(all, stage), ...);
    set_.with(stage, [&](auto i, auto& b) {
      (before(all, i), ...);  // what is read comes here, then what is written is here alone: one may be the other
      (mark(all, i), ...);
      verb(b, part_of(all, i)...);
    });
  }
  void matmul_beside(Rows y, Weight w, Rows z, Weight u, Rows x) requires(Types::Have::matmul_beside) {
    if (w.stage == u.stage) return Verbs::matmul_beside(y, w, z, u, x);
    this->matmul(y, x, w);
    this->matmul(z, x, u);
  }

 private:
  void begin() {
    CHECK(!layers_.empty() && layers_.size() <= kMaxShards && set_.size() == layers_.size(), "{} stages on {} backends",
          layers_.size(), set_.size());
    static_assert(Backend<PipelineParallel>);
    if constexpr (requires { move_.connect(set_.all()); }) move_.connect(set_.all());
  }
  size_t last() const { return set_.size() - 1; }
  template <class F>
  void each(F&& f) const {
    for (size_t i = 0; i < set_.size(); ++i) set_.with(i, f);
  }
  template <class T, class F>
  T of_each(F&& f) {
    T t{};
    each([&](auto i, auto& b) { t.part[i] = f(b); });
    return t;
  }
  template <class T, class F>
  T chosen(F&& f) {
    T t = of_each<T>(f);
    t.set = &set_, t.stage = &chooser_.emplace_back(0);
    return t;
  }

  // The first stage that has all of x, or has its first row.
  size_t where(Rows x) const {
    unsigned all = ~0u;
    for (int t = 0; t < x.rows; ++t) all &= at(x, t);
    return size_t(std::countr_zero(all ? all : x.rows ? unsigned(at(x, 0)) : 1u));
  }
  static uint8_t& at(Rows x, int t) { return x.buffer->has[size_t(x.row0 + t)]; }
  template <class I>
  static auto all_of(Rows x, I i) {
    return x.buffer->part[i].rows_at(x.row0, x.rows).cols_at(x.col0, x.cols);
  }
  // Rows that stage i lacks come there, with all their columns.
  template <class I>
  void fetch(Rows x, I i) {
    for (int t = 0; t < x.rows;) {
      const uint8_t has = at(x, t);
      int end = t + 1;
      while (end < x.rows && at(x, end) == has) ++end;
      if (!(has >> i & 1)) {
        set_.with(size_t(std::countr_zero(has)), [&](auto from, auto&) {
          move_.move(i, x.buffer->part[i].rows_at(x.row0 + t, end - t), from,
                     x.buffer->part[from].rows_at(x.row0 + t, end - t));
        });
        for (int j = t; j < end; ++j) at(x, j) = uint8_t(has | 1u << i);
        set_.with(i, [](auto, auto&) {});  // current again
      }
      t = end;
    }
  }
  // Rows that stage i writes: no other stage has them then.
  void leave(Rows x, size_t i) {
    for (int t = 0; t < x.rows; ++t) at(x, t) = uint8_t(1u << i);
  }

  // --- place(): where, what comes first, what each argument is there

  struct At {
    static constexpr size_t kNone = size_t(-1);
    size_t weight = kNone, kv = kNone, in = kNone, changed = kNone;
    size_t stage() const {
      for (const size_t s : {weight, kv, in, changed})
        if (s != kNone) return s;
      return 0;
    }
    static void first(size_t& at, size_t stage) {
      if (at == kNone) at = stage;
    }
  };
  template <class T>
  void note_place(const T&, At&) const {}
  void note_place(const Weight& w, At& at) const {
    if (w) At::first(at.weight, w.stage);
  }
  void note_place(const MoeWeights<Weight, Vec>& w, At& at) const { note_place(w.router, at); }
  void note_place(const ClusteredHead<Weight, Table>& w, At& at) const { note_place(w.head, at); }
  void note_place(const KvLayer& kv, At& at) const { At::first(at.kv, kv.stage); }
  template <Role role, class With>
  void note_place(const Placed<role, Rows, With>& x, At& at) const {
    if (!x.rows || !reads(role)) return;
    const bool changed = role == Role::kInOut || role == Role::kInOutPart;
    At::first(changed ? at.changed : at.in, where(x.rows));
  }

  template <class T>
  static void note_choice(const T&, size_t) {}
  static void note_choice(const Ids& ids, size_t stage) { *ids.stage = stage; }
  static void note_choice(const Scores& scores, size_t stage) { *scores.stage = stage; }

  template <class T, class I>
  void before(const T&, I) {}
  template <Role role, class With, class I>
  void before(const Placed<role, Rows, With>& x, I i) {
    if (x.rows && (reads(role) || (x.used && x.rows.piece))) fetch(x.rows, i);  // of a piece: the columns beside it
  }
  template <class T>
  void mark(const T&, size_t) {}
  template <Role role, class With>
  void mark(const Placed<role, Rows, With>& x, size_t i) {
    if (x.rows && x.used && writes(role)) leave(x.rows, i);
  }

  template <Role role, class With, class I>
  static auto part_of(const Placed<role, Rows, With>& x, I i) {
    return x.rows ? all_of(x.rows, i) : std::remove_cvref_t<decltype(x.rows.buffer->part[i])>{};
  }
  template <class I>
  static const AttnSpec& part_of(const PlacedHeads<Rows>& x, I) {
    return x.spec;
  }
  template <class I>
  static auto part_of(const MoeWeights<Weight, Vec>& w, I i) {
    using Part =
        MoeWeights<std::remove_cvref_t<decltype(w.router.part[i])>, std::remove_cvref_t<decltype(w.scale.part[i])>>;
    return Part{w.router.part[i], w.gate_up.part[i], w.gate.part[i], w.up.part[i], w.down.part[i], w.scale.part[i]};
  }
  template <class I>
  static auto part_of(const ResidualSpec<Vec>& p, I i) {
    return ResidualSpec<std::remove_cvref_t<decltype(p.post.part[i])>>{p.post.part[i], p.next.part[i], p.out_scale,
                                                                       p.eps};
  }
  template <class I>
  static auto part_of(const ClusteredHead<Weight, Table>& w, I i) {
    using Part =
        ClusteredHead<std::remove_cvref_t<decltype(w.head.part[i])>, std::remove_cvref_t<decltype(w.order.part[i])>>;
    return Part{w.head.part[i], w.centroid.part[i], w.order.part[i], w.top_k};
  }
  template <class T, class I>
  static decltype(auto) part_of(const T& x, I i) {
    if constexpr (requires { x.part[i]; })
      return (x.part[i]);
    else
      return (x);
  }

  std::vector<int> layers_;
  Set set_;
  Move move_;
  std::deque<Buffer> buffers_;
  std::deque<std::string> names_;
  std::deque<size_t> chooser_;  // of each list of tokens or scores: the stage that chose them last
  bool drafters_ = false;       // what is uploaded is a drafter's
};

}  // namespace facet
