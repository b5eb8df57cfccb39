#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "grammar/compile_limits.h"
#include "grammar/vocab.h"
#include "grammar/work.h"
#include "tokenizer/json_fwd.h"

// Structured output: what a model may write, as one automaton with a stack, whatever it was described by
// (docs/structured-output.md). compile_*() make a Grammar; a GrammarState follows the tokens of an answer through it;
// GrammarMasks (masks.h) says which tokens may come next.
namespace facet {

namespace grammar {
struct Automaton;
class Builder;
}  // namespace grammar

// Immutable; any number of states of any number of threads may share it.
class Grammar {
 public:
  ~Grammar();
  const grammar::Automaton& automaton() const { return *automaton_; }
  const std::vector<uint32_t>& start() const { return start_; }  // GrammarState::words() where nothing was written
  uint64_t id() const { return id_; }                            // no other grammar of this process has it
  // Anything may come before <|tool_call>, and nothing is looked at: the grammar begins with that token.
  bool lazy() const { return lazy_; }
  size_t bytes() const;

 private:
  friend class GrammarMaker;
  Grammar() = default;
  std::unique_ptr<const grammar::Automaton> automaton_;
  std::vector<uint32_t> start_;
  uint64_t id_ = 0;
  bool lazy_ = false;
};
using GrammarPtr = std::shared_ptr<const Grammar>;

// Where the constraint begins.
enum class ThoughtMode {
  kNone,      // at once
  kOptional,  // the model may think first: <|channel>thought ... <channel|>
  kOpen,      // the prompt ends in a thought it has opened: anything, then <channel|>
};

struct GrammarOptions {
  ThoughtMode thought = ThoughtMode::kNone;
  CompileLimits limits = {};
};

// Each names what it does not support, with its place: keyword and JSON path, or line and column.
Result<GrammarPtr> compile_json_object(const GrammarOptions& options = {});  // any object
Result<GrammarPtr> compile_json_schema(const Json& schema, const GrammarOptions& options = {});
Result<GrammarPtr> compile_json_schema(std::string_view schema, const GrammarOptions& options = {});
Result<GrammarPtr> compile_regex(std::string_view pattern, const GrammarOptions& options = {});  // of the whole answer
Result<GrammarPtr> compile_gbnf(std::string_view text, const GrammarOptions& options = {});      // from the rule root
Result<GrammarPtr> compile_choice(std::span<const std::string> choices, const GrammarOptions& options = {});

// What a request ends with whose grammar takes more than GrammarWork::kMost for one token or mask.
Error too_ambiguous();

// How far an answer has come. A value: a copy is a fork, and equal() states allow the same continuations. What its
// methods do is counted (work.h); once the work is over they say false, and the state is as before.
class GrammarState {
 public:
  explicit GrammarState(GrammarPtr grammar);  // at the start

  const GrammarPtr& grammar() const { return grammar_; }
  // Of a lazy grammar, until <|tool_call> comes: any token may, and all but that one change nothing.
  bool asleep() const { return asleep_; }
  bool may_end() const { return asleep_ || words_[0] != 0; }
  // The only continuation is the end.
  bool finished() const { return !asleep_ && words_[0] != 0 && words_[1] == 0; }

  // False, and the state is as before, if the token may not come next. An end-of-generation token may where the
  // grammar may end, and changes nothing.
  bool advance(const GrammarVocab& vocab, int32_t token);
  bool advance_bytes(std::string_view text);
  bool advance_special(grammar::SpecialToken token);
  // How many of the tokens may follow each other from here; the state does not move.
  size_t accepts(const GrammarVocab& vocab, std::span<const int32_t> tokens) const;

  // The text that must come next because nothing else may, at most so many bytes; it may end within a code point.
  std::string forced_text(size_t max_bytes) const;

  // The state itself: two states of one grammar with the same words are the same.
  const std::vector<uint32_t>& words() const { return words_; }
  bool operator==(const GrammarState& other) const {
    return grammar_ == other.grammar_ && asleep_ == other.asleep_ && words_ == other.words_;
  }

 private:
  GrammarPtr grammar_;
  bool asleep_ = false;
  std::vector<uint32_t> words_;  // grammar/state.cpp has the layout
};

}  // namespace facet
