#pragma once
#include <cuda_runtime.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "backend/cuda/activations.h"
#include "backend/step.h"
#include "base/recent.h"

namespace facet::cuda {

// CUDA graphs of passes: launched one by one at first, captured the second time that a pass comes with a step of one
// shape, replayed from then on.
class Graphs {
 public:
  static constexpr int kRows = 64;      // tokens of a step that may be captured
  static constexpr size_t kMost = 128;  // graphs; a server sees many shapes
  struct Counters {
    int64_t launches = 0, captures = 0;
    int64_t discarded = 0;  // of the launches
  };

  explicit Graphs(cudaStream_t stream) : stream_(stream) {}
  ~Graphs() { forget(); }
  Graphs(const Graphs&) = delete;

  // What run_pass() returns, launched one by one or as a graph. pass: its identity; under one it must launch the same
  // things whenever the shape is equal.
  struct Replayed {
    Rows out;
    bool as_graph;
  };
  template <class Pass>
  Replayed replay(const void* pass, const StepShape& shape, Pass&& run_pass) {
    Captured* c = find(pass, shape);
    if (std::exchange(ahead_.running, nullptr) == pass && c && c->exec) return {c->out, true};
    newest_pass_ = pass;
    if (!c || (!c->exec && c->seen++ == 0)) return {run_pass(), false};
    if (!c->exec) {
      begin_capture();
      c->out = run_pass();
      end_capture(*c);
    }
    launch(*c);
    return {c->out, true};
  }

  void use(bool on) { on_ = on; }
  void forget();  // they hold addresses that may move
  size_t size() const { return captured_.size(); }
  const Counters& counters() const { return counters_; }

  // --- asynchronous scheduling: the next step's graph is launched behind a draw, before the host has the tokens. It is
  // the newest step's sequences again, each with the one token that was drawn.

  // Launches it if there is a graph of it; `bucket` as for begin(). ids: the tokens, when they are there.
  template <class Draw>
  bool launch_next(int n_row, const StepShape& newest, const int32_t* ids, Draw&& draw) {
    Captured* const next = next_graph(n_row, newest);
    draw(next != nullptr);
    if (!next) return false;
    launch(*next);
    ahead_.launched = true, ahead_.ids = ids;
    return true;
  }
  // A step begins. True: it is the one that was launched ahead; if it is another, that was discarded. wait(): for ids.
  template <class Wait>
  bool begin(const Step& s, const StepShape& newest, Wait&& wait) {
    ahead_.running = nullptr;
    const bool launched = std::exchange(ahead_.launched, false);
    if (launched) wait();
    return begin(s, newest, launched);
  }
  void begin_chained() { ahead_.launched = false, ahead_.pos.clear(); }
  // Launch sizes follow the longest sequence in coarse steps, so that few graphs serve many lengths.
  static int64_t row_bucket(int64_t rows);

 private:
  struct Key {
    const void* pass = nullptr;
    StepShape shape;
    bool operator==(const Key&) const = default;
  };
  struct Captured {
    int seen = 0;
    cudaGraphExec_t exec = nullptr;
    Rows out;
  };
  static void drop(Captured& c);
  Captured* find(const void* pass, const StepShape& shape);  // null: such steps are not captured
  void begin_capture();
  void end_capture(Captured& c);
  void launch(Captured& c);
  Captured* next_graph(int n_row, const StepShape& newest);
  bool begin(const Step& s, const StepShape& newest, bool launched);

  const cudaStream_t stream_;
  bool on_ = true;
  Recent<Key, Captured> captured_{kMost};
  Counters counters_;
  const void* newest_pass_ = nullptr;  // that replay ran last
  struct {
    bool launched = false;                   // no step has begun since
    const void* running = nullptr;           // the newest step's pass if it has been launched
    int longest = 0;                         // rows of the newest step's longest sequence
    const int32_t* ids = nullptr;            // the tokens it was launched with
    std::vector<int32_t> pos, kv_len, slot;  // of the newest step's sequences if each has one token; else empty
  } ahead_;
};

}  // namespace facet::cuda
