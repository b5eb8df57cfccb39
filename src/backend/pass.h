#pragma once
#include "backend/backend.h"
#include "backend/optional.h"
#include "base/result.h"

namespace facet {

// An error when memory ran out while something was opened on the backend; nothing may run on it then.
template <class B>
Status memory_status(const B& b) {
  if constexpr (ReportsStatus<B>)
    return b.status();
  else
    return Ok{};
}

// Before work on a thread: a GPU is current by thread.
template <class B>
void make_current(B& b) {
  if constexpr (MakesCurrent<B>) b.make_current();
}

template <Backend B, class Pass>
typename B::Rows run_begun(B& b, const void* key, Pass&& pass) {
  if constexpr (ReplaysPasses<B>)
    return b.replay(key, pass);
  else
    return pass();
}

// Runs pass() on the step s, in the way the backend likes: a GPU first takes the step's arrays, and may replay what it
// recorded under `key` for a step of this shape. Under one key, pass() must depend on the step's shape alone.
template <Backend B, class Pass>
typename B::Rows run_pass(B& b, const Step& s, const void* key, Pass&& pass) {
  if constexpr (BeginsSteps<B>) b.begin_step(s);
  return run_begun(b, key, pass);
}

// A backend that runs ahead of the host: what next_tokens chooses in one pass it takes as the tokens of the next by
// itself. A pass may call it and continue, with the same memory each time; the host reads that after what a later call
// outside of a pass brings. next_step(s): the newest step again, or its first rows, with those tokens.
template <class B>
concept ChainsPasses = Backend<B> && Has<B>::next_tokens && TakesNextStep<B>;

// run_pass on what next_tokens left. s.token is not read.
template <ChainsPasses B, class Pass>
typename B::Rows run_next_pass(B& b, const Step& s, const void* key, Pass&& pass) {
  b.next_step(s);
  return run_begun(b, key, pass);
}

}  // namespace facet
