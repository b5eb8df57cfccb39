#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "backend/sampling.h"
#include "base/result.h"

namespace facet {

// A line of the daemon's protocol, one command each; words are divided by single spaces (docs/daemon.md has the
// grammar). Nothing of it is looked up here: no file, no snapshot, no vocabulary.
struct DaemonLine {
  enum class Kind : uint8_t {
    kQuit,
    kPark,
    kUnpark,
    kAcknowledged,  // accepted, and there is nothing to do
    kUnsupported,   // known, and answered with an error
    kListSlots,
    kSnapshot,
    kFreeSnapshot,
    kGenerate,  // counted file in, counted file out
    kRestore,
    kRun,        // a file of ids, tokens to the stream
    kHandshake,  // the first line of the protocol of JSON lines
  };
  enum class What : uint8_t { kAll, kTarget, kDraft };
  Kind kind = Kind::kQuit;
  What what = What::kAll;         // of park and unpark
  std::string name = {};          // of what is acknowledged or unsupported; of a handshake, the line
  std::string in = {}, out = {};  // paths
  int n = 0;                      // tokens to generate
  int slot = -1;
  Sampling sampling = {.temperature = 0};
  bool seed_given = false;
  struct Snap {
    int position = 0, slot = 0;
  };
  std::optional<Snap> snap = {};  // keep the state after so many tokens of the prompt
};
constexpr int kDaemonSlots = 64;            // snapshots have numbers in [0, 64)
constexpr size_t kDaemonLine = 64 << 10;    // bytes of a line
constexpr int kDaemonMostTokens = 1 << 24;  // that a line may ask for

// The error's text is what stands behind "err ": "bad_args", "unknown_command".
Result<DaemonLine> parse_daemon_line(std::string_view line);

// A file that begins with how many ids there are (u32), and has as many (int32), little endian and nothing else.
Result<std::vector<int32_t>> parse_counted_ids(std::string_view bytes, const std::string& path);
std::string counted_ids(const std::vector<int32_t>& ids);
// A file of ids (int32) and nothing else.
Result<std::vector<int32_t>> parse_ids(std::string_view bytes, const std::string& path);

}  // namespace facet
