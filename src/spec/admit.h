#pragma once
#include <span>
#include <vector>

#include "spec/length.h"

namespace facet {

// What a sequence could verify in the next step.
struct BatchDraft {
  std::span<const float> chance = {};  // that draft k becomes a token, falling: drafts are taken from the first on
  int least = 0;                       // so many are taken in any case
};

// How many drafts of each sequence the next step verifies, so that tokens of all sequences together come fastest. All
// drafts are put in the order of their chances, which is one in which each sequence's come from the first on, and as
// many are taken as bring the most tokens over the time of the step: with more sequences a row costs more, and drafts
// that are unlikely go. Exact for the given times, steps at the edges of tiles included.
//
// drafts: of every sequence that decodes, also of those that have none. step: T(n), in seconds. spent: seconds of the
// round that the step does not have, such as drafting. Nothing is known of times: all are taken.
std::vector<int> admit_drafts(std::span<const BatchDraft> drafts, const StepTimes& step, double spent);

}  // namespace facet
