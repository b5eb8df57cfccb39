#pragma once
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "model/drafter_file.h"

// What decides the maths of a block drafter where its file leaves it open. The text is the same with a wrong choice, and
// half of the drafts are lost, so each choice says which rule made it.
namespace facet {

template <class T>
struct Ruled {
  T value{};
  std::string why = {};  // "speculators_model_type: rows as they are"
};

struct BlockRules {
  Ruled<std::optional<double>> embed_scale;  // of the block's tokens; empty: the target's
  Ruled<std::optional<double>> softcap;      // of the head, 0: none; empty: the target's
  Ruled<bool> from_anchor;                   // slot i is about the token behind its own position: n slots, n drafts;
                                             // else about its own: slot 0 is the known token, n slots, n - 1 drafts
  Ruled<bool> sliding_causal;                // inside the block
};
// An error when two statements of the file contradict each other.
Result<BlockRules> block_rules(const DrafterFile& f);

// A file in words, a line for each thing: family, block, rules. Of the file alone: no target is known.
std::vector<std::string> describe_drafter(const DrafterFile& f);

}  // namespace facet
