#pragma once
#include <cstdint>
#include <functional>
#include <string>

#include "base/result.h"

namespace facet {

// What conversations went on from, and what is kept of them. Everything but `bytes` and `entries` only grows.
struct CacheStats {
  struct Tier {
    int64_t bytes = 0;    // in use now; of the pool: by all sequences, running ones too
    int64_t entries = 0;  // sequences to go on from, now
    int64_t limit = 0;    // bytes that it may use; 0: the tier is off, the disk also while it has no room
    int64_t hits = 0;     // requests that went on from here
    int64_t hit_tokens = 0;
    int64_t evictions = 0;  // entries that had to make room
    int64_t restores = 0;   // entries read back into the pool; of the pool itself: forks
  };
  int64_t queries = 0;       // requests that may go on from something, when they begin
  int64_t query_tokens = 0;  // of their prompts
  int64_t hits = 0;          // of them, with tokens that were not computed again
  int64_t hit_tokens = 0;
  int64_t parked = 0;         // times that a running request had to wait for memory
  double restore_s = 0;       // seconds of all restores from RAM and disk
  int64_t copies = 0;         // of sequences, out of the pool
  int64_t copies_waited = 0;  // of them, those for which the engine's thread waited, and all requests with it
  Tier gpu, ram, disk;        // gpu: the pool of rows, also on the CPU
  int64_t disk_errors = 0;    // files that could not be read or trusted
  int64_t disk_dropped = 0;   // entries that were not written because the disk was behind, or had no room
};

// Where a request's beginning came from, and why not all of it.
struct CacheUse {
  enum class Source : uint8_t { kNone, kGpu, kRam, kDisk };
  enum class Miss : uint8_t {
    kNone,     // what is known was used, as far as it goes
    kOff,      // the request goes on from nothing
    kNew,      // nothing that is known begins like it
    kDiffers,  // the nearest conversation has another token at miss_at
    kNotKept,  // tokens up to miss_at are known, and no state that reaches so far is kept
  };
  Source source = Source::kNone;
  Miss miss = Miss::kNone;
  int miss_at = -1;              // position in the prompt, from 0; -1: there is no such token
  double restore_s = 0;          // from RAM or disk into the pool
  std::string miss_reason = {};  // in words; the engine leaves it to whoever knows the text
};
const char* cache_source_name(CacheUse::Source s);  // "none", "gpu", "ram", "disk"

// A sequence that is in memory: it runs, or requests may go on from it.
struct SlotInfo {
  int id = 0;  // until it is given up
  bool running = false;
  bool empty = true;
  bool snapshot = false;          // a copy taken on the way, which stays when a request goes on from it
  uint64_t request = 0;           // that runs here
  int tokens = 0;                 // known: of the prompt and the answer so far
  int computed = 0;               // of them, in memory
  int prompt = 0, generated = 0;  // of the request that runs here
};

struct SlotDone {
  int tokens = 0;
  int64_t bytes = 0;
  double seconds = 0;
};
using SlotSink = std::function<void(Result<SlotDone>)>;  // called once, on some thread; must not block

}  // namespace facet
