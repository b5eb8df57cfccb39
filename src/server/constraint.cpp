#include "server/constraint.h"

#include <fmt/format.h>

#include <algorithm>

#include "grammar/grammar.h"
#include "grammar/tool_calls.h"
#include "server/api_fields.h"

namespace facet {
namespace {

using Kind = Constraint::Kind;

constexpr size_t kMaxSchemaBytes = 262'144;

const Json* member(const Json& object, const char* key) {
  const auto it = object.find(key);
  return it == object.end() || it->is_null() ? nullptr : &*it;
}

// The first constraint stays; a second one is an error.
class ConstraintReader {
 public:
  ConstraintReader(Fields& f, ApiRequest& r) : f_(f), c_(r.constraint) {}

  void schema(const std::string& where, const Json& v) {
    if (!v.is_object() && !v.is_boolean())
      return f_.fail(Error{where, "expected a JSON schema, found " + shown(v), ""});
    set(Kind::kSchema, where, dump_json(v));
  }
  // vLLM takes a schema as text too.
  void schema_or_text(const std::string& where, const Json& v) {
    if (!v.is_string()) return schema(where, v);
    const auto& text = v.get_ref<const std::string&>();
    if (text.size() > kMaxSchemaBytes)
      return f_.fail(
          Error{where, fmt::format("expected at most {} bytes, found {}", kMaxSchemaBytes, text.size()), ""});
    auto json = parse_json(text, where);
    if (!json) return f_.fail(json.error());
    schema(where, *json);
  }
  void text(Kind kind, const std::string& where, const Json& v) {
    if (!v.is_string()) return f_.fail(Error{where, "expected a string, found " + shown(v), ""});
    set(kind, where, v.get<std::string>());
  }
  void choice(const std::string& where, const Json& v) {
    if (!v.is_array() || v.empty() ||
        !std::all_of(v.begin(), v.end(), [](const Json& s) { return s.is_string() && !s.empty(); }))
      return f_.fail(Error{where, "expected an array of strings, found " + shown(v), ""});
    set(Kind::kChoice, where, dump_json(v));
  }
  void object(const std::string& where) { set(Kind::kSchema, where, R"({"type":"object"})"); }

 private:
  void set(Kind kind, const std::string& where, std::string text) {
    if (c_.kind != Kind::kNone) return f_.fail(Error{where, "contradicts " + c_.where, "give one of them"});
    c_ = {.kind = kind, .text = std::move(text), .where = where};
  }
  Fields& f_;
  Constraint& c_;
};

void read_response_format(Fields& f, ConstraintReader& read) {
  const Json* v = f.get("response_format");
  if (!v) return;
  const Json* type = v->is_object() ? member(*v, "type") : nullptr;
  if (type && *type == "text") return;
  if (type && *type == "json_object") {
    if (const Json* schema = member(*v, "schema")) return read.schema("response_format.schema", *schema);
    return read.object("response_format");
  }
  if (!type || *type != "json_schema")
    return f.fail("response_format", "expected the type text, json_object or json_schema", v);
  const Json* named = member(*v, "json_schema");
  const Json* schema = named && named->is_object() ? member(*named, "schema") : nullptr;
  if (!schema) return f.fail("response_format.json_schema.schema", "expected a JSON schema", nullptr);
  read.schema("response_format.json_schema.schema", *schema);
}

void read_structured_outputs(Fields& f, ConstraintReader& read, bool strict) {
  const Json* v = f.get("structured_outputs");
  if (!v) return;
  Fields o(*v, strict, "structured_outputs");
  if (const Json* x = o.get("json")) read.schema_or_text("structured_outputs.json", *x);
  if (const Json* x = o.get("regex")) read.text(Kind::kRegex, "structured_outputs.regex", *x);
  if (const Json* x = o.get("choice")) read.choice("structured_outputs.choice", *x);
  if (const Json* x = o.get("grammar")) read.text(Kind::kGbnf, "structured_outputs.grammar", *x);
  bool any_object = false;
  o.boolean("json_object", any_object);
  if (any_object) read.object("structured_outputs.json_object");
  for (const char* key : {"structural_tag", "whitespace_pattern"})
    if (const Json* x = o.get(key)) o.fail(key, "expected nothing", x, "not supported");
  f.check(o.done());
}

// All tools may have been left out: then nothing is asked of the answer.
void need_tools(Fields& f, ApiRequest& r, const Json& v) {
  if (!r.tools.empty()) return;
  if (r.left_out.tools > 0)
    r.call = {};
  else
    f.fail("tool_choice", "expected auto or none, as there are no tools", &v);
}
bool is_declared(const ApiRequest& r, const std::string& name) {
  return std::any_of(r.tools.begin(), r.tools.end(), [&](const Json& t) { return t.value("name", "") == name; });
}
void only_tool(Fields& f, ApiRequest& r, const Json* name, const Json& v) {
  if (!name || !name->is_string()) return f.fail("tool_choice", "expected the name of a function", &v);
  if (is_declared(r, name->get_ref<const std::string&>()))
    r.call = {.kind = CallChoice::Kind::kOne, .name = name->get<std::string>()};
  else if (r.left_out.tools == 0)
    f.fail("tool_choice", "expected the name of one of tools", name);
}

// {"type": "allowed_tools", "mode": "auto" or "required", "tools": [...]}; of chats within "allowed_tools".
void only_tools(Fields& f, ApiRequest& r, const Json& v) {
  const Json* inner = member(v, "allowed_tools");
  const Json& choice = inner && inner->is_object() ? *inner : v;
  const Json *mode = member(choice, "mode"), *list = member(choice, "tools");
  if (mode && *mode != "auto" && *mode != "required")
    return f.fail("tool_choice.mode", "expected auto or required", mode);
  if (!list || !list->is_array()) return f.fail("tool_choice.tools", "expected an array", list);
  for (const Json& t : *list) {
    const Json* function = t.is_object() ? member(t, "function") : nullptr;
    const Json& named = function && function->is_object() ? *function : t;
    const Json* name = named.is_object() ? member(named, "name") : nullptr;
    if (name && name->is_string() && is_declared(r, name->get_ref<const std::string&>()))
      r.call.allowed.push_back(name->get<std::string>());
    else if (r.left_out.tools == 0)
      return f.fail("tool_choice.tools", "expected names of tools", &t);
  }
  if (mode && *mode == "required") r.call.kind = CallChoice::Kind::kSome;
  // None of them is there: no call is.
  if (r.call.allowed.empty()) r.tools.clear(), r.call = {};
}

}  // namespace

void constrain_to_schema(Fields& f, ApiRequest& r, const std::string& where, const Json& schema) {
  ConstraintReader(f, r).schema(where, schema);
}

void read_constraint(Fields& f, ApiRequest& r, bool strict) {
  ConstraintReader read(f, r);
  read_response_format(f, read);
  if (const Json* v = f.get("json_schema")) read.schema("json_schema", *v);
  if (const Json* v = f.get("grammar"); v && *v != "") read.text(Kind::kGbnf, "grammar", *v);
  read_structured_outputs(f, read, strict);
  if (const Json* v = f.get("guided_json")) read.schema_or_text("guided_json", *v);
  if (const Json* v = f.get("guided_regex")) read.text(Kind::kRegex, "guided_regex", *v);
  if (const Json* v = f.get("guided_choice")) read.choice("guided_choice", *v);
  if (const Json* v = f.get("guided_grammar")) read.text(Kind::kGbnf, "guided_grammar", *v);
}

void read_tool_choice(Fields& f, ApiRequest& r) {
  const Json* v = f.get("tool_choice");
  if (!v || *v == "auto") return;
  if (*v == "none") return r.tools.clear();
  if (*v == "required") {
    r.call.kind = CallChoice::Kind::kSome;
    return need_tools(f, r, *v);
  }
  const Json* type = v->is_object() ? member(*v, "type") : nullptr;
  if (type && *type == "allowed_tools") return only_tools(f, r, *v);
  if (!type || (*type != "function" && *type != "custom")) {
    if (type && type->is_string() && r.left_out.tools > 0) return;  // one that was left out
    return f.fail("tool_choice", "expected auto, none, required, allowed_tools or a function", v, "not supported");
  }
  // The responses API has the name beside the type.
  const Json* function = member(*v, "function");
  only_tool(f, r, function && function->is_object() ? member(*function, "name") : member(*v, "name"), *v);
}

void read_anthropic_choice(Fields& f, ApiRequest& r) {
  const Json* v = f.get("tool_choice");
  if (!v) return;
  const Json* type = v->is_object() ? member(*v, "type") : nullptr;
  if (!type || (*type != "auto" && *type != "none" && *type != "any" && *type != "tool"))
    return f.fail("tool_choice", "expected the type auto, any, tool or none", v);
  if (*type == "none") r.tools.clear();
  if (*type == "any") r.call.kind = CallChoice::Kind::kSome, need_tools(f, r, *v);
  if (*type == "tool") only_tool(f, r, member(*v, "name"), *v);
  if (const Json* one = member(*v, "disable_parallel_tool_use")) r.one_call = *one == true;
}

// --- grammars

namespace {

// Calls may come, and nothing but their form is asked for.
bool is_lazy(const ApiRequest& r) { return r.call.kind == CallChoice::Kind::kFree && r.constraint.kind == Kind::kNone; }

std::vector<Json> callable(const ApiRequest& r) {
  std::vector<Json> out;
  const auto& allowed = r.call.allowed;
  for (const Json& t : r.tools) {
    const auto name = t.value("name", "");
    if (!allowed.empty() && std::find(allowed.begin(), allowed.end(), name) == allowed.end()) continue;
    const bool one = r.call.kind == CallChoice::Kind::kOne;
    if (one && name != r.call.name) continue;
    const bool strict = t.value("strict", Json()) == true;
    // Of schemas that nothing asks for, only whether there are arguments counts.
    const auto parameters = t.find("parameters");
    Json tool = {{"name", name}};
    if (parameters != t.end() && !parameters->is_null() && !parameters->empty())
      tool["parameters"] = strict || !is_lazy(r) ? *parameters : Json{{"type", "object"}};
    if (strict) tool["strict"] = true;
    out.push_back(std::move(tool));
  }
  return out;
}

Result<GrammarPtr> compile_tools(const ApiRequest& r, const std::vector<Json>& tools, const GrammarOptions& options) {
  ToolGrammarOptions o;
  o.thought = options.thought;
  o.limits = options.limits;
  o.choice = is_lazy(r)                               ? ToolChoice::kLazy
             : r.call.kind == CallChoice::Kind::kFree ? ToolChoice::kAuto
                                                      : ToolChoice::kRequired;
  o.name = r.call.name;
  o.parallel = !r.one_call && r.call.kind != CallChoice::Kind::kOne;
  o.strict_all = o.choice == ToolChoice::kRequired;
  if (o.choice == ToolChoice::kAuto && r.constraint.kind == Kind::kSchema) {
    auto schema = parse_json(r.constraint.text, r.constraint.where);
    if (!schema) return schema.error();
    o.or_value = std::move(*schema);
  }
  auto made = compile_tool_calls(tools, o);
  if (made || !o.strict_all) return made;
  // A schema that there is no grammar for ends no request that did not ask for it.
  o.strict_all = false;
  return compile_tool_calls(tools, o);
}

Result<GrammarPtr> compile_text(const Constraint& c, const GrammarOptions& o) {
  switch (c.kind) {
    case Kind::kSchema:
      return compile_json_schema(std::string_view(c.text), o);
    case Kind::kRegex:
      return compile_regex(c.text, o);
    case Kind::kGbnf:
      return compile_gbnf(c.text, o);
    case Kind::kChoice: {
      auto json = parse_json(c.text, c.where);
      if (!json) return json.error();
      return compile_choice(json->get<std::vector<std::string>>(), o);
    }
    case Kind::kNone:
      break;
  }
  return GrammarPtr{};
}

// The answer is calls, or may hold some.
bool is_of_tools(const ApiRequest& r) {
  if (r.tools.empty()) return false;
  return r.call.kind != CallChoice::Kind::kFree || r.constraint.kind == Kind::kSchema || is_lazy(r);
}

}  // namespace

std::optional<GrammarRecipe> grammar_recipe(const ApiRequest& r, bool in_thought) {
  const bool tools = is_of_tools(r);
  const Constraint& c = r.constraint;
  if (!tools && c.kind == Kind::kNone) return std::nullopt;
  std::vector<Json> functions = tools ? callable(r) : std::vector<Json>{};
  const ThoughtMode thought = tools && is_lazy(r) ? ThoughtMode::kNone  // whose text may be anything
                              : in_thought        ? ThoughtMode::kOpen
                              : r.chat() && r.thinking && !r.continue_last ? ThoughtMode::kOptional
                                                                           : ThoughtMode::kNone;
  std::string key = fmt::format("{} {} ", int(thought), int(c.kind));
  if (tools)
    key += fmt::format("{} {} {} {} ", int(r.call.kind), int(r.one_call), dump_json(Json(r.call.name)),
                       dump_json(Json(functions)));
  key += c.text;
  auto compile = [&r, tools, thought,
                  functions = std::move(functions)](const CompileLimits& limits) -> Result<GrammarPtr> {
    const GrammarOptions options{.thought = thought, .limits = limits};
    auto made = tools ? compile_tools(r, functions, options) : compile_text(r.constraint, options);
    if (made) return made;
    const Error& e = made.error();
    if (tools && e.where.starts_with("tool")) return e;
    return Error{r.constraint.where, e.where.empty() ? e.what : fmt::format("{}: {}", cut(e.where), e.what), e.hint};
  };
  return GrammarRecipe{std::move(key), std::move(compile)};
}

}  // namespace facet
