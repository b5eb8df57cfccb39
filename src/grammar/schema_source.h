#pragma once
#include <string>

#include "base/result.h"
#include "tokenizer/json.h"

namespace facet::grammar {

// A schema document: finds what $ref names, and makes one schema of those that $ref and allOf put together.
class SchemaSource {
 public:
  explicit SchemaSource(const Json& root) : root_(root) {}

  // The schema without annotations, $ref, allOf and oneOf (which becomes anyOf); keywords that it does not know are an
  // error, as is what cannot be put together. True and false stay what they are. pattern and format become arrays.
  // `where` is moved to where a $ref leads.
  Result<Json> flatten(const Json& schema, std::string& where, int depth = 0) const;
  Result<Json> merge(const Json& a, const Json& b, const std::string& where) const;

  static constexpr int kMaxDepth = 64;
  static constexpr int kMaxWork = 50'000;

 private:
  Result<const Json*> resolve(const Json& ref, const std::string& where) const;
  const Json& root_;
  mutable int work_ = 0;  // schemas looked at: references can make many of few
};

}  // namespace facet::grammar
