#include "router/pool.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "server/info.h"
#include "tokenizer/json.h"

namespace facet {
namespace {

// How long a request waits for a busy model to become idle before that one is closed to new requests.
constexpr auto kPatience = std::chrono::seconds(2);
constexpr int kMaxBackoff = 60;  // seconds between attempts to load a model that fails

int64_t change_time(const std::string& path) {
  std::error_code ec;
  const auto t = std::filesystem::last_write_time(path, ec);
  return ec ? 0 : int64_t(t.time_since_epoch().count()) ^ int64_t(std::filesystem::file_size(path, ec));
}

int64_t unix_ms() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

const char* leave_name(Model::Leave l) {
  return l == Model::Leave::kLimit ? "room for another" : l == Model::Leave::kAsked ? "asked to" : "idle";
}

}  // namespace

const char* state_name(ModelState s) {
  switch (s) {
    case ModelState::kLoading:
      return "loading";
    case ModelState::kLoaded:
      return "loaded";
    case ModelState::kStopping:
      return "unloading";
    case ModelState::kSleeping:
      return "sleeping";
    default:
      return "unloaded";
  }
}

Pool::Pool(boost::asio::io_context& io, const RouterConfig& config, PoolHooks hooks)
    : io_(io), c_(config), hooks_(std::move(hooks)) {
  for (const ModelConfig& m : c_.models) {
    models_.push_back(std::make_unique<Model>());
    models_.back()->config = m;
    models_.back()->asked = m.pinned || m.load_on_startup;
  }
}

Model* Pool::find(std::string_view name) {
  for (const auto& m : models_) {
    const auto& also = m->config.aliases;
    if (m->config.name == name || std::find(also.begin(), also.end(), name) != also.end()) return m.get();
  }
  return nullptr;
}

Model* Pool::most_recent() {
  Model* best = nullptr;
  const auto rank = [](const Model& m) { return std::pair(m.state == ModelState::kLoaded ? 1 : 0, m.used); };
  for (const auto& m : models_)
    if ((m->state == ModelState::kLoaded || m->state == ModelState::kSleeping) && (!best || rank(*m) > rank(*best)))
      best = m.get();
  return best;
}

bool Pool::may_load(const Model& m) const {
  return m.state != ModelState::kFailed || m.asked || Clock::now() >= m.retry_at ||
         change_time(m.config.path) != m.failed_file;
}

void Pool::used(Model& m) {
  m.last_used_ms = unix_ms();
  m.used = ++uses_;
  m.idle_since = Clock::now();
}

void Pool::unload(Model& m) {
  m.asked = false;
  if (m.state == ModelState::kSleeping) m.state = ModelState::kUnloaded;
  if (m.state == ModelState::kLoading) return stop(m);
  if (m.state != ModelState::kLoaded) return;
  m.leaving = true, m.leave = Model::Leave::kAsked;
  schedule();
}

// Requests in the order of their arrival, then what is to be loaded without one.
Model* Pool::next_wanted() {
  Model* next = nullptr;
  for (const auto& m : models_) {
    const bool down = m->state == ModelState::kUnloaded || m->state == ModelState::kSleeping ||
                      (m->state == ModelState::kFailed && may_load(*m));
    if (!down || (m->waiting == 0 && !m->asked)) continue;
    const bool sooner = !next || (m->waiting > 0 && (next->waiting == 0 || m->waiting_since < next->waiting_since));
    if (sooner) next = m.get();
  }
  return next;
}

void Pool::schedule() {
  if (closing_) return;
  for (const auto& m : models_)
    if (m->state == ModelState::kLoaded && m->leaving && m->running == 0) stop(*m);
  // One at a time: two that plan at once would both count on the same memory.
  for (const auto& m : models_)
    if (m->state == ModelState::kLoading) return;
  if (Model* next = next_wanted(); next && make_room(*next)) start(*next);
}

// Whether there is room already; else sees to it that there will be.
bool Pool::make_room(Model& next) {
  int resident = 0;
  bool going = false;
  Model *idle = nullptr, *busy = nullptr;  // of those that may go, the least recently used
  for (const auto& m : models_) {
    resident += m->resident();
    going |= m->state == ModelState::kStopping || (m->state == ModelState::kLoaded && m->leaving);
    if (!m->takes_requests() || m->config.pinned) continue;
    Model*& least = m->running == 0 ? idle : busy;
    if (!least || m->used < least->used) least = m.get();
  }
  if (resident <= std::min(next.beside, c_.models_max > 0 ? c_.models_max - 1 : INT_MAX)) return true;
  if (going) return false;
  Model* leaves = idle;
  if (!leaves && (next.waiting == 0 || Clock::now() - next.waiting_since >= kPatience)) leaves = busy;
  if (leaves) {
    leaves->leaving = true, leaves->leave = Model::Leave::kLimit;
    if (leaves->running == 0) stop(*leaves);
  } else if (!busy) {
    load_failed(next, 503,
                next.no_room ? next.told : "the models in memory are pinned, and there is no room for another");
  }
  return false;
}

void Pool::start(Model& m) {
  std::vector<std::string> args = {"serve", "--router-fd", "3"};
  for (std::string& a : command_line(m.config)) args.push_back(std::move(a));
  args.insert(args.end(), {"--model=" + m.config.path, "--alias=" + m.config.name});
  m.state = ModelState::kLoading;
  m.started = Clock::now();
  m.progress = 0, m.told.clear(), m.no_room = m.timed_out = m.leaving = false;
  auto child = Child::start(io_, args,
                            {.told = [this, &m](const Json& message) { told(m, message); },
                             .said = [this, &m](const std::string& line) { hooks_.said(m, line); },
                             .ended = [this, &m](int status, const std::string& line) { ended(m, status, line); }});
  if (!child) return load_failed(m, 500, child.error().what);
  m.child = std::move(*child);
  hooks_.log(fmt::format("model={} loading", m.config.name));
}

void Pool::stop(Model& m) {
  m.state = ModelState::kStopping;
  m.stop_at = Clock::now() + std::chrono::seconds(m.config.stop_s);
  if (m.child) m.child->terminate();
}

void Pool::told(Model& m, const Json& j) {
  const auto state = j["state"].get<std::string>();
  if (state == "loading") {
    const double total = j["total"].get<double>();
    m.progress = total > 0 ? std::clamp(j["done"].get<double>() / total, 0., 1.) : 0;
  } else if (state == "failed") {
    m.told = j["error"].get<std::string>(), m.no_room = j["no_room"].get<bool>();
  } else if (state == "ready" && m.state == ModelState::kLoading) {
    m.n_ctx = j["n_ctx"].get<int>(), m.n_vocab = j["n_vocab"].get<int>(), m.n_seq = j["n_seq"].get<int>();
    m.plan_bytes = j["bytes"].get<int64_t>(), m.plan = j["plan"].get<std::string>();
    m.state = ModelState::kLoaded;
    m.asked = false, m.failures = 0, m.beside = INT_MAX, m.failure.clear();
    m.idle_since = Clock::now();
    m.used = ++uses_;
    ++m.loads;
    hooks_.log(fmt::format("model={} loaded seconds={:.2f}", m.config.name,
                           std::chrono::duration<double>(Clock::now() - m.started).count()));
    hooks_.ready(m);
    schedule();
  }
}

void Pool::ended(Model& m, int status, const std::string& last_line) {
  // Not now: this is called by what is given up.
  boost::asio::post(io_, [child = std::shared_ptr<Child>(std::move(m.child))] {});
  const std::string end =
      describe_end(status) + (last_line.starts_with("facet: ") ? "; it said: " + last_line.substr(7) : "");
  m.exit_code = status;
  const ModelState was = m.state;
  if (was == ModelState::kStopping) {
    const auto why = m.leave;
    m.state = why == Model::Leave::kIdle ? ModelState::kSleeping : ModelState::kUnloaded;
    ++(why == Model::Leave::kIdle ? m.unloads_idle : why == Model::Leave::kAsked ? m.unloads_asked : m.unloads_limit);
    m.leaving = false;
    hooks_.log(fmt::format("model={} unloaded: {}", m.config.name, leave_name(why)));
  } else if (was == ModelState::kLoading) {
    int beside = 0;
    for (const auto& other : models_) beside += other->resident();
    if (m.no_room && beside > 0) {  // as if the limit were lower
      m.state = ModelState::kUnloaded;
      m.beside = beside - 1;
      hooks_.log(fmt::format("model={} does not fit beside {} others: {}", m.config.name, beside, m.told));
    } else if (m.timed_out) {
      load_failed(m, 504, fmt::format("it was not loaded within {} s (--load-timeout)", c_.load_s));
    } else if (!m.told.empty()) {
      load_failed(m, m.no_room ? 503 : 500, m.told);
    } else {
      load_failed(m, 500, "its process ended while it loaded: " + end);
    }
  } else if (was == ModelState::kLoaded) {
    died(m, "its process ended: " + end);
  }
  schedule();
}

void Pool::load_failed(Model& m, int status, const std::string& why) {
  m.state = ModelState::kFailed;
  m.failure = why;
  m.asked = false, m.beside = INT_MAX;
  ++m.failed_loads;
  m.retry_at = Clock::now() + std::chrono::seconds(std::min(kMaxBackoff, 1 << std::min(m.failures++, 6)));
  m.failed_file = change_time(m.config.path);
  hooks_.log(fmt::format("model={} failed: {}", m.config.name, why));
  hooks_.failed(m, status, why);
}

// Started again at once, once: a model that then dies before it has answered anything would go round in circles.
void Pool::died(Model& m, const std::string& why) {
  ++m.deaths;
  const bool again = !m.restarted && !m.leaving;
  m.leaving = false;
  m.failure = m.last_death = why;
  hooks_.log(fmt::format("model={} died: {}", m.config.name, why));
  hooks_.died(m, why);
  ++m.failures;
  if (again) {
    m.state = ModelState::kUnloaded, m.asked = m.restarted = true;
    ++m.restarts;
    return;
  }
  m.state = ModelState::kFailed;
  m.retry_at = Clock::now() + std::chrono::seconds(std::min(kMaxBackoff, 1 << std::min(m.failures, 6)));
  m.failed_file = change_time(m.config.path);
  hooks_.failed(m, 500, why);
}

void Pool::tick() {
  const auto now = Clock::now();
  for (const auto& m : models_) {
    if (m->state == ModelState::kLoading && now - m->started >= std::chrono::seconds(c_.load_s) && m->child)
      m->timed_out = true, m->child->kill();
    if (m->state == ModelState::kStopping && now >= m->stop_at && m->child) m->child->kill();
    const bool idle = m->takes_requests() && !m->config.pinned && m->running == 0 && m->waiting == 0;
    if (c_.sleep_idle_s > 0 && idle && now - m->idle_since >= std::chrono::seconds(c_.sleep_idle_s))
      m->leave = Model::Leave::kIdle, stop(*m);
  }
  schedule();
}

void Pool::stop_all(int seconds) {
  closing_ = true;
  const auto until = Clock::now() + std::chrono::seconds(seconds);
  const auto any = [&] {
    return std::any_of(models_.begin(), models_.end(), [](const auto& m) { return m->child != nullptr; });
  };
  for (const auto& m : models_)
    if (m->child) stop(*m);
  io_.restart();
  while (any() && Clock::now() < until) io_.run_one_for(std::chrono::milliseconds(50));
  for (const auto& m : models_)
    if (m->child) m->child->kill();
  const auto last = Clock::now() + std::chrono::seconds(2);
  while (any() && Clock::now() < last) io_.run_one_for(std::chrono::milliseconds(50));
}

}  // namespace facet
