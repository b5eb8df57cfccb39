#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <new>

#include "grammar/automaton.h"
#include "grammar/gbnf.h"
#include "grammar/grammar.h"
#include "grammar/regex.h"
#include "grammar/schema.h"
#include "grammar/state.h"
#include "grammar/tool_calls.h"

namespace facet {

using grammar::Automaton;
using grammar::Builder;
using grammar::CharDfa;
using grammar::CompileBudget;
using grammar::ExprId;
using grammar::RuleId;
using grammar::SchemaCompiler;
using grammar::SpecialToken;
using grammar::Syntax;
using grammar::Values;

namespace {

// Parsers of what was written stop at a hundred levels; nothing deeper may be written.
constexpr uint32_t kMaxJsonDepth = 96, kMaxDepth = 256;
constexpr size_t kMaxChoices = 10'000, kMaxChoiceBytes = 262'144, kMaxTools = 256;

// Any text in which a marker is not spelled, as whoever reads the answer would take it for the token.
ExprId free_text(Builder& b, std::string_view marker) {
  const CharDfa dfa = CharDfa::not_containing(marker);
  std::vector<grammar::Arc> arcs;
  std::vector<uint32_t> accept;
  for (uint32_t s = 0; s < dfa.states.size(); ++s) {
    accept.push_back(s);
    for (const CharDfa::Edge& e : dfa.states[s].edges) arcs.push_back({s, e.to, b.chars(e.on)});
  }
  return b.graph(uint32_t(dfa.states.size()), std::move(arcs), std::move(accept));
}

// What may stand before the constraint.
ExprId with_thought(Builder& b, ExprId constraint, ThoughtMode mode) {
  if (mode == ThoughtMode::kNone) return constraint;
  const ExprId rest = b.seq({free_text(b, "<channel|>"), b.token(SpecialToken::kChannelClose)});
  if (mode == ThoughtMode::kOpen) return b.seq({rest, constraint});
  return b.seq({b.optional(b.seq({b.token(SpecialToken::kChannelOpen), b.bytes("thought"), rest})), constraint});
}

}  // namespace

namespace {

// Compiles within limits: what exceeds them, and memory that ran out, is an error like any other.
template <class Compile>
Result<GrammarPtr> within(const CompileLimits& limits, const Compile& compile) {
  CompileBudget budget(limits);
  try {
    Builder builder(budget);
    return compile(builder);
  } catch (const CompileBudget::Stop& stop) {
    return stop.error;
  } catch (const std::bad_alloc&) {
    return Error{"grammar", "there was not enough memory to compile it", "simplify it, or ask again later"};
  }
}

}  // namespace

class GrammarMaker {
 public:
  static Result<GrammarPtr> make(Builder& b, ExprId constraint, const GrammarOptions& options, uint32_t max_depth,
                                 bool lazy = false) {
    static std::atomic<uint64_t> next{1};
    std::shared_ptr<Grammar> g(new Grammar);
    g->id_ = next.fetch_add(1);
    g->lazy_ = lazy;
    const RuleId root = b.new_rule("(answer)");
    b.define(root, with_thought(b, constraint, options.thought));
    Result<Automaton> a = Automaton::compile(b, root, max_depth, g->id_);
    if (!a) return a.error();
    g->automaton_ = std::make_unique<const Automaton>(std::move(*a));
    if (!grammar::start_state(*g->automaton_, g->start_)) return too_ambiguous();
    return GrammarPtr(std::move(g));
  }
};

Grammar::~Grammar() = default;
size_t Grammar::bytes() const { return sizeof(*this) + automaton_->bytes() + start_.size() * sizeof(uint32_t); }

Result<GrammarPtr> compile_json_object(const GrammarOptions& options) {
  return within(options.limits, [&](Builder& b) {
    Values values(b, Syntax::kJson);
    return GrammarMaker::make(b, values.any_object(), options, kMaxJsonDepth);
  });
}

Result<GrammarPtr> compile_json_schema(const Json& schema, const GrammarOptions& options) {
  return within(options.limits, [&](Builder& b) -> Result<GrammarPtr> {
    Values values(b, Syntax::kJson);
    const Result<ExprId> e = SchemaCompiler(values, schema).compile(schema, "#");
    if (!e) return e.error();
    Result<GrammarPtr> made = GrammarMaker::make(b, *e, options, kMaxJsonDepth);
    if (made) return made;
    return Error{"#", made.error().what, made.error().hint};
  });
}

Result<GrammarPtr> compile_json_schema(std::string_view schema, const GrammarOptions& options) {
  if (schema.size() > SchemaCompiler::kMaxBytes)
    return Error{"schema", fmt::format("expected at most {} bytes, found {}", SchemaCompiler::kMaxBytes, schema.size()),
                 "use $ref for what is repeated"};
  const Result<Json> json = parse_json(schema, "schema");
  if (!json) return json.error();
  return compile_json_schema(*json, options);
}

Result<GrammarPtr> compile_regex(std::string_view pattern, const GrammarOptions& options) {
  return within(options.limits, [&](Builder& b) -> Result<GrammarPtr> {
    const Result<grammar::Regex> regex = grammar::parse_regex(pattern);
    if (!regex) return regex.error();
    const Result<ExprId> e = regex_expr(b, *regex);
    if (!e) return e.error();
    return GrammarMaker::make(b, *e, options, kMaxDepth);
  });
}

Result<GrammarPtr> compile_gbnf(std::string_view text, const GrammarOptions& options) {
  return within(options.limits, [&](Builder& b) -> Result<GrammarPtr> {
    const Result<RuleId> root = grammar::parse_gbnf(b, text);
    if (!root) return root.error();
    return GrammarMaker::make(b, b.rule(*root), options, kMaxDepth);
  });
}

Result<GrammarPtr> compile_choice(std::span<const std::string> choices, const GrammarOptions& options) {
  size_t bytes = 0;
  for (const std::string& c : choices) bytes += c.size();
  if (choices.empty() || choices.size() > kMaxChoices || bytes > kMaxChoiceBytes)
    return Error{"choice",
                 fmt::format("expected 1 to {} texts of together at most {} bytes, found {} of {}", kMaxChoices,
                             kMaxChoiceBytes, choices.size(), bytes),
                 ""};
  return within(options.limits, [&](Builder& b) -> Result<GrammarPtr> {
    std::vector<ExprId> all;
    for (const std::string& c : choices) {
      std::vector<uint32_t> chars;
      if (!grammar::decode_utf8(c, chars)) return Error{"choice", "expected UTF-8", ""};
      all.push_back(b.bytes(c));
    }
    return GrammarMaker::make(b, b.alt(std::move(all)), options, kMaxDepth);
  });
}

namespace {

// <|tool_call>call:NAME{arguments}<tool_call|>
Result<ExprId> tool_call(Values& values, const Json& tool, size_t index, bool strict_all) {
  Builder& b = values.builder();
  const std::string where = fmt::format("tools[{}]", index);
  if (!tool.is_object() || !tool.contains("name") || !tool["name"].is_string())
    return Error{where + ".name", "expected a string, found nothing", ""};
  const auto name = tool["name"].get<std::string>();
  if (name.empty() || name.find_first_of(" \t\r\n<>{}\"") != std::string::npos)
    return Error{where + ".name",
                 fmt::format("expected a name without spaces, quotes, <, >, {{ and }}, found \"{}\"", name), ""};
  const auto strict = tool.find("strict");
  const bool follow = strict_all || (strict != tool.end() && *strict == Json(true));
  const auto parameters = tool.find("parameters");
  const bool none = parameters == tool.end() || parameters->is_null() || parameters->empty();
  ExprId arguments = none ? b.bytes("{}") : values.any_object();
  if (!none && follow) {
    const Json schema{{"allOf", Json::array({*parameters, Json{{"type", "object"}}})}};
    const bool lenient = strict == tool.end() || *strict != Json(true);
    const Result<ExprId> e = SchemaCompiler(values, *parameters, lenient).compile(schema, where + ".parameters");
    if (!e) return e;
    arguments = *e;
  }
  return b.seq({b.token(SpecialToken::kToolCallOpen), b.bytes("call:" + name), arguments,
                b.token(SpecialToken::kToolCallClose)});
}

Result<GrammarPtr> tool_grammar(Builder& b, std::span<const Json> tools, const ToolGrammarOptions& options) {
  Values values(b, Syntax::kCall);
  std::vector<ExprId> calls;
  for (size_t i = 0; i < tools.size(); ++i) {
    if (!options.name.empty() && (!tools[i].is_object() || tools[i].value("name", Json()) != options.name)) continue;
    const Result<ExprId> call = tool_call(values, tools[i], i, options.strict_all);
    if (!call) return call.error();
    calls.push_back(*call);
  }
  if (calls.empty())
    return Error{"tool_choice", fmt::format("expected the name of a function of tools, found \"{}\"", options.name),
                 ""};
  const ExprId one = b.alt(std::move(calls));
  if (options.choice == ToolChoice::kLazy)  // thoughts come before the grammar's first token, too
    return GrammarMaker::make(b, options.parallel ? b.repeat(one, 1, grammar::kUnbounded) : one, {}, kMaxJsonDepth,
                              /*lazy=*/true);
  const bool required = options.choice == ToolChoice::kRequired;
  ExprId answer =
      options.parallel ? b.repeat(one, required ? 1 : 0, grammar::kUnbounded) : b.repeat(one, required ? 1 : 0, 1);
  if (!required && options.or_value) {
    Values json(b, Syntax::kJson);
    const Result<ExprId> value = SchemaCompiler(json, *options.or_value).compile(*options.or_value, "#");
    if (!value) return value.error();
    answer = b.alt({*value, options.parallel ? b.repeat(one, 1, grammar::kUnbounded) : one});
  } else if (!required) {
    answer = b.seq({free_text(b, "<|tool_call>"), answer});
  }
  return GrammarMaker::make(b, answer, options, kMaxJsonDepth);
}

}  // namespace

Result<GrammarPtr> compile_tool_calls(std::span<const Json> tools, const ToolGrammarOptions& options) {
  if (tools.empty() || tools.size() > kMaxTools)
    return Error{"tools", fmt::format("expected 1 to {} functions, found {}", kMaxTools, tools.size()), ""};
  return within(options.limits, [&](Builder& b) { return tool_grammar(b, tools, options); });
}

}  // namespace facet
