#pragma once
#include <cuda_runtime.h>

#include <cstdint>
#include <utility>

#include "backend/cuda/activations.h"
#include "backend/step.h"
#include "base/recent.h"

namespace facet::cuda {

// Launch sizes follow the longest sequence in coarse steps, so that few graphs serve many lengths.
int64_t row_bucket(int64_t rows);

// CUDA graphs of passes: launched one by one at first, captured when a pass comes again with a step of the same shape
// soon after (kSoon), replayed from then on. Capturing takes as long as several steps, so what is rare is left alone:
// the rest of a prompt beside answers, say.
class Graphs {
 public:
  static constexpr int kRows = 64, kBatchRows = 256;  // tokens of a step that may be captured; if all are of short
                                                      // sequences
  static constexpr size_t kMost = 128;                // graphs; a server sees many shapes
  static constexpr int64_t kSoon = 64;                // passes
  struct Counters {
    int64_t launches = 0, captures = 0;
  };

  explicit Graphs(cudaStream_t stream) : stream_(stream) {}
  ~Graphs() { forget(); }
  Graphs(const Graphs&) = delete;

  // What run_pass() returned, and whether its kernels were launched as a graph. pass identifies it: under one
  // identity it must launch the same kernels whenever the shape is equal.
  struct Replayed {
    Rows out;
    bool as_graph;
  };
  template <class Pass>
  Replayed replay(const void* pass, const StepShape& shape, Pass&& run_pass) {
    Captured* c = find(pass, shape);
    if (!c || is_rare(*c)) return {run_pass(), false};
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
    if (!at_ || is_rare(*at_)) return Way::kRun;
    return at_->exec ? Way::kLaunch : Way::kCapture;
  }
  void begin() { begin_capture(); }  // of the pass that was looked at, and so on
  void end() { graph_ = captured_graph(); }
  // When no GPU captures any more: CUDA forbids a thread that does to make graphs, and to drop them, as one is here
  // where another GPU had forgotten its own.
  void instantiate() {
    drop(*at_);
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
    int64_t seen = -kSoon - 1;  // the pass that had it last, by number
    cudaGraphExec_t exec = nullptr;
    Rows out;
  };
  static void drop(Captured& c);
  bool is_rare(Captured& c) { return !c.exec && passes_ - std::exchange(c.seen, passes_) > kSoon; }
  Captured* find(const void* pass, const StepShape& shape);  // null: such steps are not captured
  void begin_capture();
  cudaGraph_t captured_graph();
  void instantiate(Captured& c, cudaGraph_t graph);
  void launch(Captured& c);

  const cudaStream_t stream_;
  bool on_ = true;
  int64_t passes_ = 0;
  Recent<Key, Captured> captured_{kMost};
  Counters counters_;
  Captured* at_ = nullptr;
  cudaGraph_t graph_ = nullptr;
};

}  // namespace facet::cuda
