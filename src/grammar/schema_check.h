#pragma once
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>

#include "grammar/char_dfa.h"
#include "grammar/schema_source.h"

namespace facet::grammar {

// The automata of patterns and formats of one schema document, each made once.
class StringPatterns {
 public:
  explicit StringPatterns(CompileBudget& budget) : budget_(budget) {}
  // Valid as long as this is. Errors name the keyword. A format of any text gives any().
  Result<const CharDfa*> pattern(std::string_view text);
  Result<const CharDfa*> format(std::string_view name);

 private:
  Result<const CharDfa*> keep(std::string key, std::string_view regex, RegexMatch match);
  CompileBudget& budget_;
  std::map<std::string, CharDfa> known_;
};

// Whether a schema allows a value that is given: for enum and const beside other keywords. Looks at the schema as it is
// written; oneOf is anyOf, as everywhere here.
class SchemaCheck {
 public:
  SchemaCheck(const SchemaSource& source, StringPatterns& patterns, CompileBudget& budget)
      : source_(source), patterns_(patterns), budget_(budget) {}

  // Of what is asked first: leave out enum and const.
  bool allows(const Json& schema, const Json& value, const std::string& where, bool literals, int depth = 0);
  // What the schema says that is not supported; then answers mean nothing.
  const std::optional<Error>& error() const { return error_; }

 private:
  bool listed(const Json& values, const Json& value);
  bool keyword(const Json& schema, const std::string& key, const Json& k, const Json& value, const std::string& where,
               int depth);
  bool text(const std::string& key, const Json& k, const std::string& value, const std::string& where);
  bool object(const Json& schema, const std::string& key, const Json& k, const Json& value, const std::string& where,
              int depth);
  bool array(const Json& schema, const std::string& key, const Json& k, const Json& value, const std::string& where,
             int depth);
  bool fail(Error error);

  const SchemaSource& source_;
  StringPatterns& patterns_;
  CompileBudget& budget_;
  std::optional<Error> error_;
  std::unordered_map<const Json*, std::unordered_set<std::string>> enums_;  // long lists, by value_key
};

bool is_multiple(const Json& value, const Json& of);

}  // namespace facet::grammar
