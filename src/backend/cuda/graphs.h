#pragma once
#include <cuda_runtime.h>

#include <cstdint>

#include "backend/cuda/activations.h"
#include "backend/step.h"
#include "base/recent.h"

namespace facet::cuda {

// Launch sizes follow the longest sequence in coarse steps, so that few graphs serve many lengths.
int64_t row_bucket(int64_t rows);

// CUDA graphs of passes: launched one by one at first, captured the second time that a pass comes with a step of one
// shape, replayed from then on.
class Graphs {
 public:
  static constexpr int kRows = 64, kBatchRows = 256;  // tokens of a step that may be captured; if all are of short
                                                      // sequences
  static constexpr size_t kMost = 128;                // graphs; a server sees many shapes
  struct Counters {
    int64_t launches = 0, captures = 0;
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
    if (!c || (!c->exec && c->seen++ == 0)) return {run_pass(), false};
    if (!c->exec) {
      begin_capture();
      c->out = run_pass();
      instantiate(*c, captured_graph());
    }
    launch(*c);
    return {c->out, true};
  }

  // replay() in pieces, for a pass over several GPUs: all of them run it, capture it, or launch what they captured.
  enum class Way : uint8_t { kRun, kCapture, kLaunch };
  Way look(const void* pass, const StepShape& shape) {
    at_ = find(pass, shape);
    if (!at_ || (!at_->exec && at_->seen++ == 0)) return Way::kRun;
    return at_->exec ? Way::kLaunch : Way::kCapture;
  }
  void begin() {  // of the pass that was looked at, and so on
    drop(*at_);
    begin_capture();
  }
  void end() { graph_ = captured_graph(); }
  void instantiate() {  // when no GPU captures any more: CUDA forbids it to a thread that does
    instantiate(*at_, graph_);
    FACET_CUDA_CHECK(cudaGraphUpload(at_->exec, stream_));
  }
  void launch() { launch(*at_); }

  void use(bool on) { on_ = on; }
  void forget();  // they hold addresses that may move
  size_t size() const { return captured_.size(); }
  const Counters& counters() const { return counters_; }

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
  cudaGraph_t captured_graph();
  void instantiate(Captured& c, cudaGraph_t graph);
  void launch(Captured& c);

  const cudaStream_t stream_;
  bool on_ = true;
  Recent<Key, Captured> captured_{kMost};
  Counters counters_;
  Captured* at_ = nullptr;
  cudaGraph_t graph_ = nullptr;
};

}  // namespace facet::cuda
