#pragma once
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "api/cache_stats.h"
#include "server/writer.h"
#include "tokenizer/tokenizer.h"

// What the server tells of the sequences that the engine keeps, in llama-server's shape where it has one. Pure
// functions.
namespace facet {

Json slots_json(std::span<const SlotInfo> slots, int n_ctx, bool drafts);

struct SlotAction {
  enum class Kind { kSave, kRestore, kErase } kind = Kind::kErase;
  int id = 0;
  std::string filename = {};  // in the folder of --slot-save-path
};
// POST /slots/{id}?action=save|restore|erase with {"filename": "name"}; folder: whether there is one for files.
Result<SlotAction> parse_slot_action(std::string_view path, std::string_view query, const std::string& body);
bool needs_file(SlotAction::Kind kind);
Json slot_done_json(const SlotAction& action, const SlotDone& done);

// timings.cache of an answer.
Json cache_json(const CacheUse& use, int hit_tokens);
// Why not more of a prompt was known, in words: the turn in which it parts from what is known, and the token. Empty:
// there is nothing to say. Tells nothing of what other requests had there.
std::string miss_reason(const CacheUse& use, std::span<const int32_t> prompt, const Tokenizer& t);

}  // namespace facet
