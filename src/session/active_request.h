#pragma once
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "api/request.h"
#include "grammar/grammar.h"
#include "session/loop_guard.h"
#include "session/mask_tasks.h"
#include "session/thought.h"

namespace facet {

struct DiskRead;
struct Fill;
struct SessionImage;

// A request as the engine works on it, from the queue to its last token.
struct ActiveRequest {
  using Clock = std::chrono::steady_clock;
  RequestId id = 0;
  Request request = {};
  Sink sink = {};
  Usage usage = {};
  std::vector<int32_t> tokens = {};  // prompt and answer, while it waits; while it runs they are its session's
  bool answered = false;             // its first token was drawn
  bool counted = false;              // what it goes on from was
  int64_t need = 0;                  // pages it had when it was parked
  int echoed = 1;                    // positions of the prompt whose log-probabilities were reported, with the first
  std::vector<int32_t> no_end = {};  // tokens never drawn before Request::min_tokens
  std::optional<GrammarState> grammar = {};   // where the answer's tokens have led, if it follows one
  std::vector<int32_t> untold = {};           // the last of them, which the grammar has not been advanced by yet
  MaskWait masking = {};                      // the mask, or the untold tokens, on the thread for those that take long
  int slow = 0;                               // its masks take long: so many more are made there
  std::optional<ThoughtBudget> thought = {};  // where its thoughts are, if it limits them
  std::optional<LoopGuard> loops = {};        // what repeats in it, if it may not go round
  std::shared_ptr<DiskRead> reading = {};     // the file that it waits for
  std::shared_ptr<const SessionImage> wanted = {};  // the state for which it waits for a slot
  std::shared_ptr<Fill> filling = {};               // the state that comes into the pool, which it waits for
  bool filled = false;                              // one came, since it last waited
  Clock::time_point arrived = Clock::now(), started = {}, first_token = {};
};

}  // namespace facet
