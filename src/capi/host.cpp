#include <fmt/format.h>

#include <chrono>
#include <cstring>
#include <span>
#include <utility>

#include "api/media_load.h"
#include "capi/handles.h"

namespace facet::capi {

Host::Host(std::unique_ptr<Engine> engine) : engine_(std::move(engine)), thread_([this] { loop(); }) {}

Host::~Host() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  woken_.notify_all();
  thread_.join();
}

void Host::wake() {
  {
    std::lock_guard lock(mutex_);
    poked_ = true;
  }
  woken_.notify_all();
}

Result<RequestId> Host::submit(Request r, Sink sink) {
  auto id = engine_->submit(std::move(r), std::move(sink));
  if (id) wake();
  return id;
}

void Host::cancel(RequestId id) {
  engine_->cancel(id);
  wake();
}

void Host::when_idle(const std::function<void()>& work) {
  bool done = false;
  std::unique_lock lock(mutex_);
  work_.push_back([&] {
    work();
    {
      std::lock_guard inner(mutex_);
      done = true;
    }
    woken_.notify_all();
  });
  woken_.notify_all();
  woken_.wait(lock, [&] { return done; });
}

Result<std::vector<MediaItem>> Host::encode(bool is_picture, std::string_view bytes, const std::string& where,
                                            int budget) {
  MediaEncoder* encoder = engine_->media();
  if (!encoder || !(is_picture ? encoder->sees() : encoder->hears()))
    return Error{where,
                 encoder ? fmt::format("the model's encoders take no {}", is_picture ? "pictures" : "sound")
                         : "this model has no encoder of pictures and sound beside it",
                 "open the model with its mmproj file (facet_model_params.mmproj)"};
  std::lock_guard lock(encoding_);
  MediaLoad load(is_picture, std::as_bytes(std::span(bytes)), where, budget);
  if (auto ok = load.open(*encoder, encoded_); !ok) return ok.error();
  if (auto ok = load.encode(*encoder, encoded_); !ok) return ok.error();
  return load.items();
}

void Host::loop() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    poked_ = false;
    lock.unlock();
    const bool busy = engine_->tick();
    lock.lock();
    if (busy) continue;
    if (!work_.empty()) {
      const std::function<void()> work = std::move(work_.front());
      work_.pop_front();
      lock.unlock();
      work();
      lock.lock();
      continue;
    }
    woken_.wait(lock, [&] { return stopping_ || poked_ || !work_.empty(); });
  }
}

namespace {
int32_t stop_of(Stop s) {
  switch (s) {
    case Stop::kEos:
      return FACET_STOP_END;
    case Stop::kLength:
      return FACET_STOP_LENGTH;
    case Stop::kContext:
      return FACET_STOP_CONTEXT;
    case Stop::kCancelled:
      return FACET_STOP_CANCELLED;
    case Stop::kLoop:
      return FACET_STOP_LOOP;
    case Stop::kError:
      break;
  }
  return FACET_STOP_FAILED;
}
}  // namespace

Answer::Answer(Engine& engine, std::shared_ptr<Conversation> conversation, Options options)
    : engine_(engine),
      o_(std::move(options)),
      parser_(/*chat=*/conversation != nullptr, {.in_thought = o_.in_thought, .tools = o_.tools}, o_.stop),
      conversation_(std::move(conversation)) {
  if (const Tokenizer* t = engine.tokenizer()) decoder_.emplace(*t);
}

Sink Answer::sink(const std::shared_ptr<Answer>& self) {
  Sink s{.tokens = [self](RequestId id, std::span<const int32_t> ids) { self->tokens(id, ids); },
         .done = [self](RequestId, Stop why, const Usage& usage,
                        const std::string& error) { self->done(why, usage, error); }};
  if (o_.logprobs >= 0)
    s.logprobs = [self](RequestId, int at, std::span<const TokenLogprobs> told) { self->logprobs(at, told); };
  return s;
}

void Answer::show(const std::vector<ParseEvent>& events) {
  for (const ParseEvent& e : events) {
    if (e.kind == ParseEvent::Kind::kContent) text_ += e.text;
    if (e.kind == ParseEvent::Kind::kReasoning) thought_ += e.text;
    add_event(message_, e);
  }
}

void Answer::logprobs(int at, std::span<const TokenLogprobs> told) {
  std::lock_guard lock(mutex_);
  for (size_t i = 0; i < told.size(); ++i) waiting_[at + int(i) - o_.prompt] = told[i];
}

// What the answer does not use of a step may be there: those of the token's own place count, and no earlier ones come.
void Answer::add_logprobs() {
  if (o_.logprobs < 0) return;
  const auto found = waiting_.find(n_tokens_);
  const TokenLogprobs none;
  const TokenLogprobs& l = found == waiting_.end() ? none : found->second;
  logprobs_.push_back({l.id, l.logprob});
  for (size_t k = 0; k < size_t(o_.logprobs); ++k)
    logprobs_.push_back(k < l.top.size() ? facet_logprob{l.top[k].first, l.top[k].second} : facet_logprob{-1, 0});
  waiting_.erase(waiting_.begin(), waiting_.upper_bound(n_tokens_));
}

void Answer::tokens(RequestId id, std::span<const int32_t> ids) {
  {
    std::lock_guard lock(mutex_);
    for (const int32_t token : ids) {
      if (parser_.stopped()) break;  // what was drawn beyond the end
      ids_.push_back(token);
      add_logprobs();
      ++n_tokens_;
      if (decoder_) show(parser_.push(decoder_->push(token)));
    }
    if (parser_.stopped()) engine_.cancel(id);
  }
  changed_.notify_all();
}

namespace {
Json calls_json(const std::vector<ParsedCall>& calls) {
  Json list = Json::array();
  for (const ParsedCall& c : calls)
    list.push_back({{"id", c.id}, {"type", "function"}, {"function", {{"name", c.name}, {"arguments", c.arguments}}}});
  return list;
}
}  // namespace

void Answer::add_to_conversation() {
  Message m;
  m.role = "assistant";
  m.content = message_.content;
  m.reasoning = message_.reasoning;
  for (const ParsedCall& c : message_.tool_calls) {
    auto arguments = parse_json(c.arguments, "arguments");
    m.tool_calls.push_back({.id = c.id, .name = c.name, .arguments = arguments ? std::move(*arguments) : Json()});
  }
  conversation_->messages.push_back(std::move(m));
}

void Answer::done(Stop why, const Usage& usage, const std::string& error) {
  {
    std::lock_guard lock(mutex_);
    if (decoder_) show(parser_.push(decoder_->finish()));
    show(parser_.finish(is_cut(why)));
    if (!message_.tool_calls.empty()) calls_ = dump_json(calls_json(message_.tool_calls));
    if (conversation_) {
      std::lock_guard messages(conversation_->mutex);
      if (why != Stop::kError) add_to_conversation();
      conversation_->answering = false;
    }
    usage_ = usage, error_ = error;
    stop_ = parser_.stopped() && why != Stop::kError ? int32_t(FACET_STOP_TEXT) : stop_of(why);
  }
  changed_.notify_all();
}

facet_status Answer::poll(int timeout_ms, facet_output* to, Error* why) {
  std::unique_lock lock(mutex_);
  const auto anything = [&] { return stop_ != FACET_RUNNING || !ids_.empty() || !text_.empty() || !thought_.empty(); };
  if (timeout_ms < 0)
    changed_.wait(lock, anything);
  else
    changed_.wait_for(lock, std::chrono::milliseconds(timeout_ms), anything);
  told_ids_ = std::exchange(ids_, {});
  told_text_ = std::exchange(text_, {});
  told_thought_ = std::exchange(thought_, {});
  told_logprobs_ = std::exchange(logprobs_, {});
  write_struct(to, facet_output{.struct_size = 0,
                                .tokens = told_ids_.data(),
                                .n_tokens = told_ids_.size(),
                                .text = told_text_.c_str(),
                                .text_bytes = told_text_.size(),
                                .thought = told_thought_.c_str(),
                                .thought_bytes = told_thought_.size(),
                                .stop = stop_,
                                .logprobs = told_logprobs_.data(),
                                .n_logprobs = told_logprobs_.size(),
                                .tool_calls = calls_.c_str(),
                                .tool_calls_bytes = calls_.size()});
  if (stop_ != FACET_STOP_FAILED) return FACET_OK;
  *why = {"request", error_, ""};
  return FACET_FAILED;
}

bool Answer::stats(facet_stats* to) const {
  std::lock_guard lock(mutex_);
  if (stop_ == FACET_RUNNING) return false;
  return write_struct(to, facet_stats{.struct_size = 0,
                                      .prompt = usage_.prompt,
                                      .cached = usage_.cached,
                                      .generated = usage_.generated,
                                      .steps = usage_.steps,
                                      .drafted = usage_.drafted,
                                      .accepted = usage_.accepted,
                                      .queue_s = usage_.queue_s,
                                      .prefill_s = usage_.prefill_s,
                                      .decode_s = usage_.decode_s,
                                      .media = o_.media});
}

facet_status fail(facet_error* to, facet_status status, const Error& why) {
  if (!to || to->struct_size < sizeof(size_t)) return status;
  facet_error e = {};
  e.status = status;
  const auto copy = [](char* out, size_t room, const std::string& text) {
    const size_t n = std::min(room - 1, text.size());
    std::memcpy(out, text.data(), n);
    out[n] = 0;
  };
  copy(e.where, sizeof e.where, why.where);
  copy(e.what, sizeof e.what, why.what);
  copy(e.hint, sizeof e.hint, why.hint);
  write_struct(to, e);
  return status;
}

}  // namespace facet::capi
