#pragma once
#include <cstdint>
#include <numeric>
#include <span>
#include <string>

#include "api/phases.h"
#include "api/request.h"

// What an engine reports of its steps and drafts (EngineConfig::stepped, EngineConfig::drafted).
namespace facet {

// A step that ran, as EngineConfig::stepped is told of it.
struct StepStats {
  int sequences = 0, waiting = 0;     // sequences in the step; requests that wait for one
  int prompt_tokens = 0, tokens = 0;  // tokens of prompts in it, and of answers with drafts
  double seconds = 0;                 // from its drafts to its tokens
  PhaseTimes::Seconds phase_s = {};   // from the tokens of the step before to its own
  int64_t pages = 0;                  // of the cache, mapped meanwhile
  double since_last() const { return std::accumulate(phase_s.begin(), phase_s.end(), 0.); }
};
// "16.2 ms to a step of 8 sequences, 8 tokens of prompts: map 4.3, ...", with the phases that took a hundredth of it.
std::string step_line(const StepStats& s);

// A draft that was verified, as EngineConfig::drafted is told of it.
struct DraftRound {
  RequestId request = 0;
  int position = 0;                      // of node 0 in the sequence
  const char* method = "";               // "dflash", "mtp", "suffix"
  std::span<const int32_t> token = {};   // node 0, the newest token, then the drafts
  std::span<const int16_t> parent = {};  // of each node in a tree; empty: a chain
  std::span<const int32_t> drawn = {};   // the model's token after each node
  int accepted = 0;                      // drafts that were right
  double draft_s = 0, verify_s = 0;      // for all sequences of the step
};

}  // namespace facet
