#pragma once
#include <map>
#include <string>

#include "grammar/schema_check.h"
#include "grammar/schema_source.h"
#include "grammar/values.h"

namespace facet::grammar {

// JSON Schema to rules. Every schema that describes objects or arrays becomes a rule, equal ones the same, so that
// references may be recursive.
class SchemaCompiler {
 public:
  static constexpr size_t kMaxBytes = 262'144, kMaxItems = 4096, kMaxLength = 100'000, kMaxProperties = 4096;

  // lenient: a keyword that is not supported, or not there, is left out where it stands; otherwise it is an error.
  SchemaCompiler(Values& values, const Json& root, bool lenient = false)
      : v_(values), b_(values.builder()), budget_(b_.budget()), source_(root, lenient, budget_), patterns_(budget_) {}

  // A value that the schema allows.
  Result<ExprId> compile(const Json& schema, const std::string& where);

 private:
  ExprId value(const Json& schema, std::string where, int depth);
  ExprId flat(const Json& schema, const std::string& where, int depth);
  ExprId typed(const std::string& type, const Json& s, const std::string& where, int depth);
  std::vector<ExprId> literals(const Json& s, const std::string& where);
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
  bool lengths(const Json& s, const std::string& where, uint32_t& min, uint32_t& max);
  bool name_dfa(const Json& s, const std::string& where, CharDfa& out);
  bool name_patterns(const Json& s, const std::string& where, std::vector<const CharDfa*>& out);
  bool narrow(CharDfa& dfa, const CharDfa& by, const std::string& where, const char* keyword, CharDfa::Size size);
  bool unique_items(const Json& each, std::string where, uint64_t min, uint64_t max, ExprId& out);

  ExprId fail(const std::string& where, std::string what, std::string hint = "");
  // True, and nothing else, where what is not supported may be left out; otherwise fails.
  bool leave_out(const std::string& where, std::string what, std::string hint = "");

  Values& v_;
  Builder& b_;
  CompileBudget& budget_;
  SchemaSource source_;
  StringPatterns patterns_;
  std::map<std::string, RuleId> rules_;  // by the text of a flat schema
  bool failed_ = false;
  Error error_;
};

}  // namespace facet::grammar
