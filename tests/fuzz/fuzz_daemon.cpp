// Lines of the daemon's protocol and the files that they name.
#include <cstdint>
#include <string_view>

#include "daemon/line_protocol.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace facet;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  if (const auto line = parse_daemon_line(text)) {
    const bool runs = line->kind == DaemonLine::Kind::kGenerate || line->kind == DaemonLine::Kind::kRestore ||
                      line->kind == DaemonLine::Kind::kRun;
    if (runs && (line->in.empty() || line->n < 0 || line->n > kDaemonMostTokens)) __builtin_trap();
    if (line->slot >= kDaemonSlots || (line->snap && (line->snap->slot < 0 || line->snap->slot >= kDaemonSlots)))
      __builtin_trap();
    if (!(line->sampling.temperature >= 0) || !(line->sampling.top_p >= 0 && line->sampling.top_p <= 1))
      __builtin_trap();
  }
  if (const auto ids = parse_counted_ids(text, "file"))
    if (counted_ids(*ids) != text) __builtin_trap();
  if (const auto ids = parse_ids(text, "file"))
    if (ids->size() * 4 != size) __builtin_trap();
  return 0;
}
