#pragma once
#include <span>
#include <vector>

namespace facet {

// What a sequence wants from the next step. Pure data: the scheduler knows no device, clock or cache.
struct SeqDemand {
  int id = 0;
  int pending = 0;        // tokens not yet in the cache: the rest of the prompt, or the one just drawn
  bool decoding = false;  // its prompt is done
};
struct SeqGrant {
  int id = 0;
  int n = 0;  // of its pending tokens, from the first
};

// Fills a step of at most `budget` tokens: one token for every decoding sequence first, so that a long prompt never
// stalls an answer, then prompts in order of arrival, each as much as fits.
std::vector<SeqGrant> schedule(std::span<const SeqDemand> demands, int budget);

}  // namespace facet
