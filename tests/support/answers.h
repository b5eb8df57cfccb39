#pragma once
#include <string>
#include <utility>
#include <vector>

#include "api/engine.h"
#include "support/must.h"

namespace facet::test {

// What a request got.
struct Answer {
  std::vector<int32_t> tokens = {};
  Stop why = Stop::kError;
  Usage usage = {};
  std::string error = {};
};
inline Sink into(Answer& a) {
  return {
      .tokens = [&a](RequestId, std::span<const int32_t> t) { a.tokens.insert(a.tokens.end(), t.begin(), t.end()); },
      .done = [&a](RequestId, Stop s, const Usage& u, const std::string& e) { a.why = s, a.usage = u, a.error = e; }};
}
// The answer of an engine that has nothing else to do.
inline Answer answer_of(Engine& e, Request r) {
  Answer a;
  must(e.submit(std::move(r), into(a)));
  while (e.tick()) {
  }
  return a;
}

}  // namespace facet::test
