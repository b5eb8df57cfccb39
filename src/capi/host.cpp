#include <fmt/format.h>

#include <cstring>
#include <utility>

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

Answer::Answer(const Tokenizer* tokenizer, std::shared_ptr<Conversation> conversation, bool in_thought)
    : conversation_(std::move(conversation)) {
  if (tokenizer) decoder_.emplace(*tokenizer);
  if (conversation_) parser_.emplace(ParseOptions{.in_thought = in_thought, .tools = std::vector<std::string>{}});
}

Sink Answer::sink(const std::shared_ptr<Answer>& self) {
  return {.tokens = [self](RequestId, std::span<const int32_t> ids) { self->tokens(ids); },
          .done = [self](RequestId, Stop why, const Usage& usage,
                         const std::string& error) { self->done(why, usage, error); }};
}

void Answer::text(const std::string& piece) {
  if (parser_)
    show(parser_->push(piece));
  else
    text_ += piece;
}

void Answer::show(const std::vector<ParseEvent>& events) {
  for (const ParseEvent& e : events) {
    if (e.kind == ParseEvent::Kind::kContent) text_ += e.text;
    if (e.kind == ParseEvent::Kind::kReasoning) thought_ += e.text;
  }
}

void Answer::tokens(std::span<const int32_t> ids) {
  {
    std::lock_guard lock(mutex_);
    ids_.insert(ids_.end(), ids.begin(), ids.end());
    if (decoder_)
      for (const int32_t id : ids) text(decoder_->push(id));
  }
  changed_.notify_all();
}

void Answer::done(Stop why, const Usage& usage, const std::string& error) {
  {
    std::lock_guard lock(mutex_);
    if (decoder_) text(decoder_->finish());
    if (parser_) show(parser_->finish());
    if (conversation_) {
      std::lock_guard messages(conversation_->mutex);
      if (why != Stop::kError) {
        Message m;
        m.role = "assistant";
        m.content = parser_->message().content;
        conversation_->messages.push_back(std::move(m));
      }
      conversation_->answering = false;
    }
    usage_ = usage, error_ = error, stop_ = stop_of(why);
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
  write_struct(to, facet_output{.struct_size = 0,
                                .tokens = told_ids_.data(),
                                .n_tokens = told_ids_.size(),
                                .text = told_text_.c_str(),
                                .text_bytes = told_text_.size(),
                                .thought = told_thought_.c_str(),
                                .thought_bytes = told_thought_.size(),
                                .stop = stop_});
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
                                      .decode_s = usage_.decode_s});
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
