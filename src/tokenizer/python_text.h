#pragma once
#include <string>
#include <string_view>

#include "tokenizer/json_fwd.h"

// What Python and Jinja do to values: the chat template was written for them.
namespace facet::python {

std::string_view trim(std::string_view s);  // str.strip()
std::string upper(std::string s);           // of ASCII
std::string lower(std::string s);
std::string number_text(const Json& v);
std::string str(const Json& v);                           // what {{ v }} prints
bool truthy(const Json* v);                               // null: false
const Json* member(const Json& object, const char* key);  // null: it has none, or is no object

}  // namespace facet::python
