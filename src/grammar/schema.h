#pragma once
#include <map>
#include <string>

#include "grammar/schema_source.h"
#include "grammar/values.h"

namespace facet::grammar {

// JSON Schema to rules. Every schema that describes objects or arrays becomes a rule, equal ones the same, so that
// references may be recursive.
class SchemaCompiler {
 public:
  static constexpr size_t kMaxBytes = 262'144, kMaxItems = 4096, kMaxLength = 4000, kMaxProperties = 4096;
  static constexpr size_t kMaxStringStates = 100'000;  // of strings with several of pattern, format, lengths

  SchemaCompiler(Values& values, const Json& root) : v_(values), b_(values.builder()), source_(root), root_(root) {}

  // A value that the schema allows.
  Result<ExprId> compile(const Json& schema, const std::string& where);

 private:
  ExprId value(const Json& schema, std::string where, int depth);
  ExprId flat(const Json& schema, const std::string& where, int depth);
  ExprId typed(const std::string& type, const Json& s, const std::string& where, int depth);
  ExprId literals(const Json& s, const std::string& where, int depth);
  ExprId object(const Json& s, const std::string& where, int depth);
  ExprId array(const Json& s, const std::string& where, int depth);
  ExprId text(const Json& s, const std::string& where);
  ExprId number(const Json& s, bool integer, const std::string& where);

  struct Property {
    std::string name;
    ExprId member;  // key and value
    bool required;
  };
  struct Rest {  // names that are not listed
    ExprId member = 0;
    bool allowed = false;
  };
  std::vector<Property> properties(const Json& s, const std::string& where, int depth);
  Rest rest(const Json& s, const std::string& where, int depth);
  ExprId members(const std::vector<Property>& all, const Rest& rest, uint32_t min, uint32_t max);
  bool string_dfa(const Json& s, const std::string& where, CharDfa& out);
  bool name_dfa(const Json& s, const std::string& where, CharDfa& out);
  bool narrow(CharDfa& dfa, const CharDfa& by, const std::string& where, const char* keyword);

  ExprId fail(const std::string& where, std::string what, std::string hint = "");

  Values& v_;
  Builder& b_;
  SchemaSource source_;
  size_t string_states_ = 0;
  const Json& root_;
  std::map<std::string, RuleId> rules_;  // by the text of a flat schema
  bool failed_ = false;
  Error error_;
};

}  // namespace facet::grammar
