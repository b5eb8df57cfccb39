#pragma once
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace facet {

// Turns at the one place that layers' weights are brought into: in the order in which they are asked for, by a thread of
// its own, each as soon as the one before it was released. What someone waits for is not taken away before he has it.
class LayerTurns {
 public:
  // bring(layer): on the thread, once the place is free. begin(): first there.
  LayerTurns(std::function<void()> begin, std::function<void(int)> bring);
  ~LayerTurns();
  LayerTurns(const LayerTurns&) = delete;

  // The layer is brought, if it is neither there nor asked for: a hint.
  void ask(int layer);
  // Returns when the layer is there, which stays until release(). next: is asked for, too; -1: none.
  void acquire(int layer, int next);
  void release(int layer);

 private:
  void ask_locked(int layer);
  void run();

  const std::function<void()> begin_;
  const std::function<void(int)> bring_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<int> wanted_;  // the next first
  int there_ = -1;           // the layer in the place, or on its way there; -1: none
  bool is_there_ = false, in_use_ = false, ending_ = false;
  int awaited_ = -1;  // by acquire(); -1: none
  std::thread thread_;
};

}  // namespace facet
