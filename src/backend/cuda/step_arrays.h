#pragma once
#include <array>
#include <cstddef>

#include "backend/cuda/device.h"
#include "backend/cuda/graphs.h"
#include "backend/step.h"

namespace facet::cuda {

// A step's arrays: packed in pinned memory, copied in one piece. Small steps have a place of their own, so that graphs
// find them at fixed addresses and little is copied.
class StepArrays {
 public:
  explicit StepArrays(Device& device) : device_(device) {}
  ~StepArrays();
  StepArrays(const StepArrays&) = delete;

  void reserve(int max_tok);
  // The step with device pointers. keep_tokens: those of the step before. wait() ends all work under way.
  template <class F>
  Step upload(const Step& s, bool keep_tokens, F&& wait) {
    Place& p = place_of(s);
    if (p.unread == kRing) wait();
    return upload(p, s, keep_tokens);
  }
  int32_t* token() const { return token_; }  // of the newest step

  // Copies from the host that were under way when the newest results were asked for have been read once these are
  // there.
  void results_asked_for() { small_.later = large_.later = 0; }
  void results_there() { small_.unread = small_.later, large_.unread = large_.later; }

 private:
  static constexpr int kSmall = Graphs::kRows, kRing = 8;
  struct Place {
    int cap = 0;
    std::byte* device = nullptr;
    std::array<std::byte*, kRing> host{};
    int next = 0;
    int unread = 0;  // of host that the device may still have to read
    int later = 0;   // of those, since the newest results were asked for
  };
  Place& place_of(const Step& s) { return s.shape.n_tok <= kSmall && s.shape.n_seq < kSmall ? small_ : large_; }
  Step upload(Place& p, const Step& s, bool keep_tokens);

  Device& device_;
  Place small_, large_;
  int32_t* token_ = nullptr;
};

}  // namespace facet::cuda
