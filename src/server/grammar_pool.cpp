#include "server/grammar_pool.h"

#include <fmt/format.h>

#include <algorithm>
#include <new>

#include "base/last_memory.h"
#include "base/threads.h"

namespace facet {

GrammarPool::GrammarPool(Prepare prepare, int n_threads, Times times) : GrammarPool(std::move(prepare), times) {
  for (int i = 0; i < std::max(2, n_threads); ++i) threads_.emplace_back([this, i] { loop(/*slices_only=*/i == 0); });
}

GrammarPool::~GrammarPool() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    for (const JobPtr& j : running_) j->cancelled = true;
  }
  wake_.notify_all();
  for (std::thread& t : threads_) t.join();
}

size_t GrammarPool::waiting() const {
  const std::lock_guard lock(mutex_);
  return queue_.size() + running_.size();
}

void GrammarPool::make(GrammarRecipe recipe, const std::string& client, const std::atomic<bool>& left,
                       std::function<void(GrammarAnswer)> done) {
  {
    std::unique_lock lock(mutex_);
    const auto at = std::find_if(known_.begin(), known_.end(), [&](const auto& k) { return k.first == recipe.key; });
    if (at != known_.end()) {
      known_.splice(known_.begin(), known_, at);
      const GrammarAnswer answer = at->second;
      lock.unlock();
      return done(answer);
    }
    for (const auto* jobs : {&running_, &queue_})
      for (const JobPtr& j : *jobs)
        if (!j->cancelled && j->recipe.key == recipe.key) return void(j->waiters.push_back({&left, std::move(done)}));
    auto job = std::make_shared<Job>();
    job->recipe = std::move(recipe);
    job->client = client;
    job->waiters.push_back({&left, std::move(done)});
    queue_.push_back(std::move(job));
  }
  wake_.notify_all();
}

void GrammarPool::cancel_if_left(Job& job) {
  if (std::all_of(job.waiters.begin(), job.waiters.end(), [](const Waiter& w) { return w.left->load(); }))
    job.cancelled = true;
}

void GrammarPool::look() {
  const std::lock_guard lock(mutex_);
  for (const auto* jobs : {&running_, &queue_})
    for (const JobPtr& j : *jobs) cancel_if_left(*j);
}

// Jobs that nobody waits for and those whose time is up come first: they cost nothing. Then those without a slice; the
// client whose last turn is longest ago.
GrammarPool::JobPtr GrammarPool::next(bool slices_only) {
  auto best = queue_.end();
  const auto rank = [&](const Job& j) {
    const bool over = j.cancelled || Clock::now() >= j.since + times_.most;
    const auto turn = turn_.find(j.client);
    return std::tuple(!over, j.sliced, turn == turn_.end() ? 0 : turn->second);
  };
  for (auto j = queue_.begin(); j != queue_.end(); ++j) {
    if (slices_only && (*j)->sliced && std::get<0>(rank(**j))) continue;
    if (best == queue_.end() || rank(**j) < rank(**best)) best = j;
  }
  if (best == queue_.end()) return nullptr;
  const JobPtr job = *best;
  turn_[job->client] = ++n_turns_;
  running_.splice(running_.end(), queue_, best);
  if (queue_.empty() && turn_.size() > 1000) turn_.clear();
  return job;
}

void GrammarPool::loop(bool slices_only) {
  lower_priority();
  for (;;) {
    JobPtr job;
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [&] { return stop_ || (job = next(slices_only)); });
      if (stop_) return;
    }
    run(job);
  }
}

void GrammarPool::run(const JobPtr& job) {
  std::optional<GrammarAnswer> answer;
  try {
    answer = made(*job);
  } catch (const std::bad_alloc&) {
    answer = GrammarAnswer{.error = no_memory()};
  }
  if (answer) return finish(job, *answer);
  {
    const std::lock_guard lock(mutex_);
    const auto at = std::find(running_.begin(), running_.end(), job);
    job->sliced = true;
    queue_.splice(queue_.end(), running_, at);
  }
  wake_.notify_all();
}

// Nullopt: its slice is over.
std::optional<GrammarAnswer> GrammarPool::made(Job& job) {
  const auto now = Clock::now();
  const auto end = job.since + times_.most;
  CompileLimits limits;
  limits.cancelled = &job.cancelled;
  limits.deadline = job.sliced ? end : std::min(end, now + times_.slice);
  const auto too_slow = [&] {
    return GrammarAnswer{
        .error = ApiError{.status = 503,
                          .message = fmt::format("the grammar was not compiled within {} s: the machine is busy",
                                                 std::chrono::duration_cast<std::chrono::seconds>(times_.most).count()),
                          .param = "",
                          .code = "grammar_timeout"}};
  };
  if (job.cancelled || now >= end) return too_slow();
  Result<GrammarPtr> grammar = job.recipe.compile(limits);
  if (!grammar) {
    if (job.cancelled || Clock::now() >= end) return too_slow();
    if (!job.sliced && Clock::now() >= limits.deadline) return std::nullopt;
  } else if (*grammar) {
    GrammarWork work(GrammarWork::kMost, &job.cancelled);
    const GrammarWorkScope scope(work);
    if (const Status ok = prepare_(*grammar); !ok) grammar = ok.error();
    if (job.cancelled) return too_slow();
  }
  GrammarAnswer answer;
  if (grammar)
    answer.grammar = std::move(*grammar);
  else
    answer.error = api_error(grammar.error());
  const std::lock_guard lock(mutex_);
  remember(job.recipe.key, answer);
  return answer;
}

void GrammarPool::finish(const JobPtr& job, const GrammarAnswer& answer) {
  std::vector<Waiter> waiters;
  {
    const std::lock_guard lock(mutex_);
    waiters = std::move(job->waiters);
    running_.remove(job);
  }
  const MayNotFail scope;  // a request whose answer is lost would wait for ever
  for (const Waiter& w : waiters) w.done(answer);
}

void GrammarPool::remember(const std::string& key, const GrammarAnswer& answer) {
  known_.emplace_front(key, answer);
  size_t bytes = 0, n = 0;
  for (auto k = known_.begin(); k != known_.end(); ++k) {
    bytes += k->first.size() + (k->second.grammar ? k->second.grammar->bytes() : 0);
    if (++n <= kMostKnown && (bytes <= kMostBytes || n == 1)) continue;
    known_.erase(k, known_.end());
    break;
  }
}

}  // namespace facet
