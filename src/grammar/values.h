#pragma once
#include <optional>
#include <string>
#include <string_view>

#include "grammar/builder.h"
#include "grammar/char_dfa.h"
#include "tokenizer/json.h"

namespace facet::grammar {

enum class Syntax {
  kJson,
  kCall,  // arguments of a tool call: strings between quote tokens, plain keys, no whitespace
};

// How values are written in one of the two syntaxes. Whitespace of JSON is bounded, so that a model cannot go on with
// it for ever: see docs/structured-output.md.
class Values {
 public:
  Values(Builder& b, Syntax syntax) : b_(b), syntax_(syntax) {}
  Builder& builder() { return b_; }
  Syntax syntax() const { return syntax_; }

  ExprId string();  // any
  // Of these characters and so many; kUnbounded: any number. Where both together have too many states, shorter ones
  // only.
  ExprId string(const CharDfa& dfa, uint32_t min = 0, uint32_t max = kUnbounded);
  ExprId string_of_length(uint32_t min, uint32_t max);
  ExprId number();
  ExprId integer();
  ExprId any();  // any value
  ExprId any_object();
  ExprId any_array();
  // A value written in one way.
  Result<ExprId> literal(const Json& value, const std::string& where);

  ExprId key(std::string_view name);        // with the colon
  ExprId key(const CharDfa& dfa);           // any of these names, with the colon
  static CharDfa key_chars(Syntax syntax);  // what may be a name that the schema does not list
  ExprId open(char bracket);                // and what may stand behind it
  ExprId close(char bracket);               // and what may stand before it
  ExprId comma();

 private:
  ExprId space();                        // JSON: nothing, a space, or a newline and an indent
  ExprId json_char();                    // between quotes
  ExprId json_text(const CharSet& set);  // one character of the set, written in the shortest way
  ExprId quoted(ExprId text);
  ExprId label(const CharSet& on);
  ExprId dfa_graph(const CharDfa& dfa);
  ExprId shared(std::optional<RuleId>& rule, const char* name, ExprId (Values::*make)());
  ExprId make_string();
  ExprId make_number();
  ExprId make_integer();
  ExprId make_any();
  ExprId make_object();
  ExprId make_array();
  ExprId make_space();

  Builder& b_;
  Syntax syntax_;
  std::optional<RuleId> string_, number_, integer_, any_, object_, array_;
  std::optional<ExprId> space_, json_char_;
  std::vector<std::pair<CharSet, ExprId>> labels_;  // few different sets come up again and again
};

// Whether a name can be a key of a call as it is; otherwise it is written between quote tokens.
bool plain_key(std::string_view name);

}  // namespace facet::grammar
