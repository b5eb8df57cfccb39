// The functions of include/facet.h.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "capi/handles.h"
#include "grammar/grammar.h"
#include "model/types.h"

namespace facet::capi {

Result<Request> request_of(const Engine& engine, std::vector<int32_t> prompt, const facet_request_params* params) {
  facet_request_params p{};
  if (params && !read_struct(params, p))
    return Error{"facet_request_params", "struct_size: expected the size of a structure this library knows",
                 "set it to sizeof the structure; use the header of this library or an earlier one"};
  Request r{.prompt = std::move(prompt)};
  const auto finite = [](float x) { return std::isfinite(x); };
  if (!finite(p.temperature) || !finite(p.top_p) || !finite(p.min_p) || !finite(p.repeat_penalty) ||
      !finite(p.presence_penalty) || !finite(p.frequency_penalty) || p.temperature < 0 || p.top_p < 0 || p.min_p < 0 ||
      p.repeat_penalty < 0 || p.max_tokens < 0 || p.max_loops < 0)
    return Error{"facet_request_params", "expected finite numbers that are not negative, found another one", ""};
  r.max_tokens = p.max_tokens > 0 ? p.max_tokens : -1;
  r.max_loops = p.max_loops;
  r.sampling.temperature = p.temperature;
  r.sampling.top_k = p.top_k;
  r.sampling.top_p = p.top_p > 0 ? p.top_p : 1.f;
  r.sampling.min_p = p.min_p;
  r.sampling.repeat_penalty = p.repeat_penalty > 0 ? p.repeat_penalty : 1.f;
  r.sampling.presence_penalty = p.presence_penalty, r.sampling.frequency_penalty = p.frequency_penalty;
  r.sampling.seed = p.seed;
  r.ignore_eos = p.flags & FACET_IGNORE_EOS;
  r.draft = !(p.flags & FACET_NO_DRAFT);
  r.cache = !(p.flags & FACET_NO_CACHE);
  if (p.json_schema) {
    if (!engine.tokenizer())
      return Error{"facet_request_params", "json_schema: the model file has no vocabulary", "give none"};
    auto grammar = compile_json_schema(std::string_view(p.json_schema));
    if (!grammar) return grammar.error();
    r.grammar = *grammar;
  }
  return r;
}

namespace {

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

Result<EngineConfig> config_of(const facet_model_params& p) {
  EngineConfig c;
  c.model = p.path;
  if (p.backend) c.backend = p.backend;
  if (c.backend != "auto" && c.backend != "cuda" && c.backend != "cpu" && c.backend != "ref")
    return Error{"facet_model_params", fmt::format("backend: expected auto, cuda, cpu or ref, found '{}'", c.backend),
                 ""};
  if (p.kv_type) {
    const auto type = kv_type_from_name(p.kv_type);
    if (!type)
      return Error{"facet_model_params",
                   fmt::format("kv_type: expected f16, q8_0, q4_0, tq3_0 or f32, found '{}'", p.kv_type), ""};
    c.kv_k = c.kv_v = *type;
  }
  if (p.n_drafters > 0 && !p.drafters)
    return Error{"facet_model_params", fmt::format("drafters: expected {} paths, found NULL", p.n_drafters), ""};
  for (size_t i = 0; i < p.n_drafters; ++i) c.draft.files.emplace_back(p.drafters[i]);
  if (p.context < 0 || p.sequences < 0 || p.threads < 0 || p.gpu < 0 || p.memory < 0)
    return Error{"facet_model_params", "expected numbers that are not negative, found another one", ""};
  c.n_ctx = p.context, c.n_threads = p.threads, c.gpu = p.gpu, c.memory = p.memory;
  if (p.sequences > 0) c.max_seq = p.sequences;
  if (p.log) {
    c.noted = [log = p.log, user = p.log_user](const std::string& s) { log(user, FACET_LOG_NOTE, s.c_str()); };
    c.degraded = [log = p.log, user = p.log_user](const std::string& what, const std::string& why) {
      log(user, FACET_LOG_WARNING, fmt::format("without {}: {}", what, why).c_str());
    };
  }
  return c;
}

const Error kNoVocabulary{"model", "tokenizer.ggml.model: expected a vocabulary, found none",
                          "give token ids, or another model"};

}  // namespace
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
    if (!config) return fail(error, FACET_BAD_ARGUMENT, config.error());
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
    const Engine& e = model->host->engine();
    auto r = request_of(e, {ids, ids + count}, params);
    if (!r) return fail(error, FACET_BAD_ARGUMENT, r.error());
    r->suppress_special = false;
    return submit(model->host, std::move(*r), std::make_shared<Answer>(e.tokenizer(), nullptr, false), request, error);
  });
}

facet_status facet_session_create(facet_model* model, const char* system, int32_t think, facet_session** session,
                                  facet_error* error) {
  return guarded(error, "facet_session_create", [&] {
    if (!model || !session) return bad_argument(error, "facet_session_create", "expected a model and a place");
    *session = nullptr;
    if (!model->host->engine().tokenizer()) return fail(error, FACET_FAILED, kNoVocabulary);
    auto s = std::make_unique<facet_session>();
    s->host = model->host, s->conversation = std::make_shared<Conversation>(think != 0);
    if (system) {
      Message m;
      m.role = "system", m.content = std::string(system);
      s->conversation->messages.push_back(std::move(m));
    }
    *session = s.release();
    return facet_status(FACET_OK);
  });
}

facet_status facet_session_add(facet_session* session, const char* role, const char* text, facet_error* error) {
  return guarded(error, "facet_session_add", [&] {
    if (!session || !role || !text)
      return bad_argument(error, "facet_session_add", "expected a session, a role and a text");
    Message m;
    m.role = role, m.content = std::string(text);
    if (m.role != "user" && m.role != "assistant")
      return bad_argument(error, "facet_session_add",
                          fmt::format("role: expected user or assistant, found '{}'", m.role));
    std::lock_guard lock(session->conversation->mutex);
    if (session->conversation->answering)
      return fail(error, FACET_BUSY, {"facet_session_add", "the session's last request is not done", "poll it"});
    session->conversation->messages.push_back(std::move(m));
    return facet_status(FACET_OK);
  });
}

facet_status facet_session_submit(facet_session* session, const facet_request_params* params, facet_request** request,
                                  facet_error* error) {
  return guarded(error, "facet_session_submit", [&] {
    if (!session || !request) return bad_argument(error, "facet_session_submit", "expected a session and a place");
    *request = nullptr;
    const Engine& e = session->host->engine();
    Conversation& c = *session->conversation;
    std::unique_lock lock(c.mutex);
    if (c.answering)
      return fail(error, FACET_BUSY, {"facet_session_submit", "the session's last request is not done", "poll it"});
    auto chat =
        render_chat_ranges(c.messages, {},
                           {.add_generation_prompt = true,
                            .enable_thinking = c.thinking,
                            .variant = chat_variant(e.tokenizer()->vocab().chat_template, e.model().d_ple > 0)});
    if (!chat) return fail(error, FACET_FAILED, chat.error());
    auto r = request_of(e, e.tokenizer()->encode(chat->text, true, true, chat->plain), params);
    if (!r) return fail(error, FACET_BAD_ARGUMENT, r.error());
    r->in_thought = ends_in_thought(chat->text);
    auto answer = std::make_shared<Answer>(e.tokenizer(), session->conversation, r->in_thought);
    c.answering = true;
    lock.unlock();
    const facet_status s = submit(session->host, std::move(*r), answer, request, error);
    lock.lock();
    if (s != FACET_OK) c.answering = false;
    return s;
  });
}

void facet_session_free(facet_session* session) { delete session; }

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
