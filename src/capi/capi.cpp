// The functions of include/facet.h; those of sessions are in session.cpp.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "capi/handles.h"
#include "grammar/grammar.h"
#include "grammar/tool_calls.h"
#include "model/types.h"

namespace facet::capi {

const Error kNoVocabulary{"model", "tokenizer.ggml.model: expected a vocabulary, found none",
                          "give token ids, or another model"};

namespace {

constexpr const char* kParams = "facet_request_params";
constexpr size_t kMostStops = 64;

// As the server has it: the form of calls and nothing of their arguments, unless a function says "strict".
Result<GrammarPtr> grammar_of_calls(std::span<const Json> tools, const char* schema, ThoughtMode thought) {
  std::vector<Json> functions;
  for (const Json& t : tools) {
    const bool strict = t.value("strict", Json()) == true;
    const auto parameters = t.find("parameters");
    Json f = {{"name", t.value("name", "")}};
    if (parameters != t.end() && !parameters->is_null() && !parameters->empty())
      f["parameters"] = strict || schema ? *parameters : Json{{"type", "object"}};
    if (strict) f["strict"] = true;
    functions.push_back(std::move(f));
  }
  ToolGrammarOptions o;
  o.choice = schema ? ToolChoice::kAuto : ToolChoice::kLazy;
  o.thought = schema ? thought : ThoughtMode::kNone;  // lazy: the text before a call may be anything
  o.strict_all = false;
  if (schema) {
    auto value = parse_json(schema, "json_schema");
    if (!value) return value.error();
    o.or_value = std::move(*value);
  }
  return compile_tool_calls(functions, o);
}

Result<GrammarPtr> grammar_of(const Engine& engine, const facet_request_params& p, const AnswerForm& form) {
  if (!p.json_schema && !p.grammar && form.tools.empty()) return GrammarPtr();
  if (!engine.tokenizer())
    return Error{kParams, fmt::format("{}: the model file has no vocabulary", p.grammar ? "grammar" : "json_schema"),
                 "give none"};
  if (p.json_schema && p.grammar) return Error{kParams, "grammar: contradicts json_schema", "give one of them"};
  if (p.grammar) return compile_gbnf(p.grammar, {.thought = form.thought});
  if (!form.tools.empty()) return grammar_of_calls(form.tools, p.json_schema, form.thought);
  return compile_json_schema(std::string_view(p.json_schema), {.thought = form.thought});
}

Status set_sampling(const facet_request_params& p, Sampling& s) {
  for (const float x : {p.temperature, p.top_p, p.min_p, p.repeat_penalty, p.presence_penalty, p.frequency_penalty})
    if (!std::isfinite(x)) return Error{kParams, "expected finite numbers, found another one", ""};
  if (p.temperature < 0 || p.top_p < 0 || p.min_p < 0 || p.repeat_penalty < 0 || p.max_tokens < 0 || p.max_loops < 0)
    return Error{kParams, "expected finite numbers that are not negative, found another one", ""};
  s.temperature = p.temperature;
  s.top_k = p.top_k;
  s.top_p = p.top_p > 0 ? p.top_p : 1.f;
  s.min_p = p.min_p;
  s.repeat_penalty = p.repeat_penalty > 0 ? p.repeat_penalty : 1.f;
  s.presence_penalty = p.presence_penalty, s.frequency_penalty = p.frequency_penalty;
  s.seed = p.seed;
  return Ok{};
}

Status set_stops(const facet_request_params& p, std::vector<std::string>& stop) {
  if (p.n_stop > kMostStops)
    return Error{kParams, fmt::format("stop: expected at most {} texts, found {}", kMostStops, p.n_stop), ""};
  if (p.n_stop > 0 && !p.stop) return Error{kParams, "stop: expected texts, found NULL", ""};
  for (size_t i = 0; i < p.n_stop; ++i) {
    if (!p.stop[i] || !*p.stop[i]) return Error{kParams, "stop: expected texts, found an empty one", ""};
    stop.emplace_back(p.stop[i]);
  }
  return Ok{};
}

}  // namespace

Result<Asked> request_of(const Engine& engine, std::vector<int32_t> prompt, const facet_request_params* params,
                         const AnswerForm& form) {
  facet_request_params p{};
  if (params && !read_struct(params, p))
    return Error{kParams, "struct_size: expected the size of a structure this library knows",
                 "set it to sizeof the structure; use the header of this library or an earlier one"};
  Asked asked{.request = {.prompt = std::move(prompt)}};
  Request& r = asked.request;
  if (auto ok = set_sampling(p, r.sampling); !ok) return ok.error();
  if (auto ok = set_stops(p, asked.stop); !ok) return ok.error();
  r.max_tokens = p.max_tokens > 0 ? p.max_tokens : -1;
  r.max_loops = p.max_loops;
  r.ignore_eos = p.flags & FACET_IGNORE_EOS;
  r.draft = !(p.flags & FACET_NO_DRAFT);
  r.cache = !(p.flags & FACET_NO_CACHE);
  if (p.top_logprobs < 0 || p.top_logprobs > 20 || (p.top_logprobs > 0 && !(p.flags & FACET_LOGPROBS)))
    return Error{kParams, fmt::format("top_logprobs: expected 0 to 20, and FACET_LOGPROBS, found {}", p.top_logprobs),
                 ""};
  if (p.flags & FACET_LOGPROBS) r.logprobs = p.top_logprobs;
  auto grammar = grammar_of(engine, p, form);
  if (!grammar) return grammar.error();
  r.grammar = std::move(*grammar);
  return asked;
}

facet_status submit(const std::shared_ptr<Host>& host, Request r, std::shared_ptr<Answer> answer,
                    facet_request** request, facet_error* error) {
  auto handle = std::make_unique<facet_request>();
  handle->host = host, handle->answer = answer;
  auto id = host->submit(std::move(r), answer->sink(answer));
  if (!id) return fail(error, FACET_FAILED, id.error());
  handle->id = *id;
  *request = handle.release();
  return FACET_OK;
}

}  // namespace facet::capi

using namespace facet;        // NOLINT: the functions below are C's
using namespace facet::capi;  // NOLINT

extern "C" {

uint32_t facet_abi_version(void) { return FACET_ABI_VERSION; }
const char* facet_version(void) { return FACET_VERSION; }

facet_status facet_model_open(const facet_model_params* params, facet_model** model, facet_error* error) {
  return guarded(error, "facet_model_open", [&] {
    facet_model_params p{};
    if (!model || !read_struct(params, p) || !p.path)
      return bad_argument(error, "facet_model_open", "expected parameters with struct_size and a path, and a place");
    *model = nullptr;
    auto config = config_of(p);
    if (!config)
      return fail(error, config.error().where == "facet_model_params" ? FACET_BAD_ARGUMENT : FACET_FAILED,
                  config.error());
    auto engine = Engine::open(*config);
    if (!engine) return fail(error, FACET_FAILED, engine.error());
    *model = new facet_model{std::make_shared<Host>(std::move(*engine))};
    return facet_status(FACET_OK);
  });
}

void facet_model_free(facet_model* model) { delete model; }

facet_status facet_model_get_info(const facet_model* model, facet_model_info* info) {
  if (!model) return FACET_BAD_ARGUMENT;
  const Engine& e = model->host->engine();
  facet_model_info i{};
  i.n_vocab = e.model().n_vocab, i.n_layer = e.model().n_layer();
  i.context = e.config().n_ctx, i.sequences = e.config().max_seq, i.threads = e.config().n_threads;
  i.bos = e.tokenizer() ? e.tokenizer()->bos() : -1;
  std::strncpy(i.backend, e.config().backend.c_str(), sizeof i.backend - 1);
  if (const MediaEncoder* m = e.media())
    i.inputs = (m->sees() ? uint32_t(FACET_IMAGE) : 0) | (m->hears() ? uint32_t(FACET_AUDIO) : 0);
  return write_struct(info, i) ? FACET_OK : FACET_BAD_ARGUMENT;
}

facet_status facet_tokenize(const facet_model* model, const char* text, size_t bytes, uint32_t flags, int32_t* ids,
                            size_t capacity, size_t* count, facet_error* error) {
  return guarded(error, "facet_tokenize", [&] {
    if (!model || !count || (!text && bytes > 0) || (!ids && capacity > 0))
      return bad_argument(error, "facet_tokenize", "expected a model, a text, room and a count");
    const Tokenizer* t = model->host->engine().tokenizer();
    if (!t) return fail(error, FACET_FAILED, kNoVocabulary);
    const auto all =
        t->encode({text ? text : "", bytes}, (flags & FACET_ADD_BOS) != 0, (flags & FACET_PARSE_SPECIAL) != 0);
    *count = all.size();
    if (all.size() > capacity)
      return fail(error, FACET_TOO_SMALL,
                  {"facet_tokenize", fmt::format("expected room for {} ids, found {}", all.size(), capacity), ""});
    std::copy(all.begin(), all.end(), ids);
    return facet_status(FACET_OK);
  });
}

facet_status facet_detokenize(const facet_model* model, const int32_t* ids, size_t count, char* text, size_t capacity,
                              size_t* bytes, facet_error* error) {
  return guarded(error, "facet_detokenize", [&] {
    if (!model || !bytes || (!ids && count > 0) || (!text && capacity > 0))
      return bad_argument(error, "facet_detokenize", "expected a model, ids, room and a length");
    const Tokenizer* t = model->host->engine().tokenizer();
    if (!t) return fail(error, FACET_FAILED, kNoVocabulary);
    for (size_t i = 0; i < count; ++i)
      if (!t->valid(ids[i]))
        return bad_argument(error, "facet_detokenize",
                            fmt::format("expected ids in [0, {}), found {}", t->size(), ids[i]));
    const std::string all = t->decode({ids, count}, false);
    *bytes = all.size();
    if (all.size() > capacity)
      return fail(error, FACET_TOO_SMALL,
                  {"facet_detokenize", fmt::format("expected room for {} bytes, found {}", all.size(), capacity), ""});
    std::copy(all.begin(), all.end(), text);
    return facet_status(FACET_OK);
  });
}

facet_status facet_score(facet_model* model, const int32_t* ids, size_t count, size_t from, facet_logits_fn f,
                         void* user, facet_error* error) {
  return guarded(error, "facet_score", [&] {
    if (!model || !ids || !f || count == 0 || from >= count || count > size_t(model->host->engine().config().n_ctx))
      return bad_argument(error, "facet_score",
                          "expected a model, 1 to context ids, one of them to begin at, a function");
    const int n_vocab = model->host->engine().model().n_vocab;
    for (size_t i = 0; i < count; ++i)
      if (ids[i] < 0 || ids[i] >= n_vocab)
        return bad_argument(error, "facet_score", fmt::format("expected ids in [0, {}), found {}", n_vocab, ids[i]));
    facet::Status done = Ok{};
    model->host->when_idle([&] {
      done = model->host->engine().score({ids, count}, int(from), [&](int first, std::span<const float> rows) {
        f(user, size_t(first), rows.size() / size_t(n_vocab), size_t(n_vocab), rows.data());
      });
    });
    return done ? facet_status(FACET_OK) : fail(error, FACET_FAILED, done.error());
  });
}

facet_status facet_submit(facet_model* model, const int32_t* ids, size_t count, const facet_request_params* params,
                          facet_request** request, facet_error* error) {
  return guarded(error, "facet_submit", [&] {
    if (!model || !ids || !request) return bad_argument(error, "facet_submit", "expected a model, ids and a place");
    *request = nullptr;
    Engine& e = model->host->engine();
    auto asked = request_of(e, {ids, ids + count}, params, {});
    if (!asked) return fail(error, FACET_BAD_ARGUMENT, asked.error());
    Request& r = asked->request;
    r.suppress_special = false;
    auto answer = std::make_shared<Answer>(
        e, nullptr, Answer::Options{.stop = std::move(asked->stop), .logprobs = r.logprobs, .prompt = int(count)});
    return submit(model->host, std::move(r), std::move(answer), request, error);
  });
}

facet_status facet_poll(facet_request* request, int32_t timeout_ms, facet_output* output, facet_error* error) {
  return guarded(error, "facet_poll", [&] {
    if (!request || !output || output->struct_size < sizeof(size_t))
      return bad_argument(error, "facet_poll", "expected a request, and an output with struct_size");
    Error why;
    const facet_status s = request->answer->poll(timeout_ms, output, &why);
    return s == FACET_OK ? s : fail(error, s, why);
  });
}

void facet_cancel(facet_request* request) {
  if (request) request->host->cancel(request->id);
}

facet_status facet_request_get_stats(const facet_request* request, facet_stats* stats) {
  if (!request || !stats) return FACET_BAD_ARGUMENT;
  return request->answer->stats(stats) ? FACET_OK : FACET_BAD_ARGUMENT;
}

void facet_request_free(facet_request* request) {
  facet_cancel(request);  // nothing, if it is done
  delete request;
}

}  // extern "C"
