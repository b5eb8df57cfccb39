#pragma once
#include "backend/backend.h"
#include "base/result.h"

namespace facet {

// An error when memory ran out while something was opened on the backend; nothing may run on it then.
template <class B>
Status memory_status(const B& b) {
  if constexpr (requires { b.status(); })
    return b.status();
  else
    return Ok{};
}

// Runs pass() on the step s, in the way the backend likes: a GPU first takes the step's arrays, and may replay what it
// recorded under `key` for a step of this shape. Under one key, pass() must depend on the step's shape alone.
template <Backend B, class Pass>
typename B::Rows run_pass(B& b, const Step& s, const void* key, Pass&& pass) {
  if constexpr (requires { b.begin_step(s); }) b.begin_step(s);
  if constexpr (requires { b.replay(key, pass); })
    return b.replay(key, pass);
  else
    return pass();
}

}  // namespace facet
