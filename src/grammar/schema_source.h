#pragma once
#include <string>
#include <string_view>
#include <unordered_map>

#include "base/result.h"
#include "grammar/compile_budget.h"
#include "tokenizer/json.h"

namespace facet::grammar {

// Numbers to compare and copy a value: its parts and, in eights, its bytes.
size_t weight(const Json& value);
// A place below another; a long name is cut.
std::string below(const std::string& where, std::string_view keyword, std::string_view name = {});
// Equal for equal values, also for 1 and 1.0.
std::string value_key(const Json& value);

// A schema document: finds what $ref names, and makes one schema of those that $ref and allOf put together.
class SchemaSource {
 public:
  // lenient: what cannot be had is left out; otherwise it is an error.
  SchemaSource(const Json& root, bool lenient, CompileBudget& budget)
      : root_(root), lenient_(lenient), budget_(budget) {}

  // The schema without annotations, $ref, allOf and oneOf (which becomes anyOf); keywords that it does not know are an
  // error, as is what cannot be put together. True and false stay what they are. pattern and format become arrays.
  // `where` is moved to where a $ref leads.
  Result<Json> flatten(const Json& schema, std::string& where, int depth = 0) const;
  Result<Json> merge(Json a, const Json& b, const std::string& where) const;
  Result<const Json*> resolve(const Json& ref, const std::string& where) const;

  enum class Keyword { kKnown, kAnnotation, kUnknown };
  static Keyword kind(std::string_view key);
  // "" or what is wrong with the form of a keyword's value.
  static std::string check_form(std::string_view key, const Json& value);
  static Error unsupported(const std::string& where, std::string_view key);
  bool lenient() const { return lenient_; }

  static constexpr int kMaxDepth = 64;
  static constexpr int kMaxWork = 50'000;

 private:
  Result<Json> keywords(const Json& schema, const std::string& where) const;
  Json merge_properties(const Json& a, const Json& b) const;
  bool merge_keyword(Json& a, const std::string& key, const Json& y) const;
  const Json* member(const Json& object, const std::string& name) const;

  const Json& root_;
  const bool lenient_;
  CompileBudget& budget_;
  mutable int work_ = 0;  // schemas looked at: references can make many of few
  // Large objects that $ref leads through, by name.
  mutable std::unordered_map<const Json*, std::unordered_map<std::string_view, const Json*>> members_;
};

}  // namespace facet::grammar
