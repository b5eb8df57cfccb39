#pragma once
#include <gtest/gtest.h>

#include <cstdlib>
#include <utility>

#include "base/result.h"

namespace facet::test {

// Unwraps a Result or ends the test program with its message.
template <class T>
T must(Result<T> r) {
  if (!r) {
    ADD_FAILURE() << r.error().message();
    std::abort();
  }
  return std::move(*r);
}

}  // namespace facet::test
