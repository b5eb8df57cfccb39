#include "daemon/daemon.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <random>

#include "base/files.h"
#include "base/print.h"
#include "model/types.h"

namespace facet {

using Kind = DaemonLine::Kind;
using What = DaemonLine::What;

Result<std::unique_ptr<Daemon>> Daemon::start(Config c) {
  std::unique_ptr<Daemon> d(new Daemon(std::move(c)));
  auto engine = d->c_.open();
  if (!engine) return engine.error();
  d->engine_ = std::move(*engine);
  d->c_.say("[daemon] ready");
  return d;
}

// Whoever reads the stream waits for an end, also of what failed.
void Daemon::fail(const std::string& what, bool end) {
  c_.say("err " + on_one_line(what));
  if (end) c_.stream.end();
}

void Daemon::once(const std::string& about, const std::string& text) {
  if (noted_.insert(about).second) c_.note(text);
}

Daemon::Next Daemon::command(std::string_view text) {
  const auto parsed = parse_daemon_line(text);
  if (!parsed) {
    fail(parsed.error().what);
    return Next::kGoOn;
  }
  const DaemonLine& l = *parsed;
  switch (l.kind) {
    case Kind::kQuit:
      return Next::kQuit;
    case Kind::kHandshake:
      return Next::kJson;
    case Kind::kPark:
      park(l);
      break;
    case Kind::kUnpark:
      unpark(l);
      break;
    case Kind::kAcknowledged:
      once(l.name, l.name + ": accepted; there is nothing of that kind to do here");
      c_.stream.end();
      break;
    case Kind::kUnsupported:
      fail(l.name + " is not supported");
      break;
    case Kind::kListSlots:
      list_slots();
      break;
    case Kind::kSnapshot:
      snapshot(l.slot, int(last_.size()));
      break;
    case Kind::kFreeSnapshot:
      free_snapshot(l.slot);
      break;
    case Kind::kGenerate:
    case Kind::kRestore:
    case Kind::kRun:
      run(l);
      break;
  }
  return Next::kGoOn;
}

// The model's memory goes back to the system; what was computed goes with it, unless there is a folder for it.
void Daemon::park(const DaemonLine& l) {
  if (l.what == What::kDraft) {
    drafts_ = false;
    once("park draft", "park draft: requests go without drafts; the drafter's memory stays with the model's");
  } else {
    engine_ = nullptr;
  }
  c_.stream.end();
}
void Daemon::unpark(const DaemonLine& l) {
  if (l.what != What::kTarget) drafts_ = true;
  if (l.what != What::kDraft && !engine_) {
    auto engine = c_.open();
    if (!engine) return fail(engine.error().message());
    engine_ = std::move(*engine);
  }
  c_.stream.end();
}

void Daemon::list_slots() {
  std::vector<int> slots;
  for (const auto& [slot, tokens] : snapshots_) slots.push_back(slot);
  c_.say(fmt::format("[snap] slots={}", fmt::join(slots, ",")));
  c_.stream.end();
}

// After so many of the last command's tokens.
void Daemon::snapshot(int slot, int len) {
  if (last_.empty() || !engine_) {
    c_.say(fmt::format("[snap] inline slot={} cur_pos=-1", slot));
  } else {
    snapshots_[slot].assign(last_.begin(), last_.begin() + len);
    c_.say(fmt::format("[snap] inline slot={} cur_pos={}", slot, len));
  }
  c_.stream.end();
}
void Daemon::free_snapshot(int slot) {
  snapshots_.erase(slot);
  c_.say(fmt::format("[snap] freed slot={}", slot));
  c_.stream.end();
}

Result<std::vector<int32_t>> Daemon::read_prompt(const DaemonLine& l) const {
  const auto path = c_.paths.input(l.in);
  if (!path) return path.error();
  const auto bytes = read_file(*path, 4 + 4 * uint64_t(engine_->config().n_ctx));
  if (!bytes) return bytes.error();
  auto ids = l.kind == Kind::kGenerate ? parse_counted_ids(*bytes, l.in) : parse_ids(*bytes, l.in);
  if (ids && ids->empty()) return Error{"", "empty_prompt", ""};
  return ids;
}

Daemon::Answer Daemon::generate(Request r, bool to_stream) {
  Answer a;
  const auto id =
      engine_->submit(std::move(r), {.tokens =
                                         [&](RequestId, std::span<const int32_t> t) {
                                           a.tokens.insert(a.tokens.end(), t.begin(), t.end());
                                           if (to_stream) c_.stream.write(t);
                                         },
                                     .done =
                                         [&](RequestId, Stop why, const Usage& u, const std::string& error) {
                                           a.usage = u;
                                           if (why == Stop::kError) a.error = error;
                                         }});
  if (!id) {
    a.error = id.error().message();
    return a;
  }
  while (engine_->tick())
    if (to_stream && c_.stream.lost()) engine_->cancel(*id);
  return a;
}

void Daemon::run(const DaemonLine& l) {
  const bool to_file = l.kind == Kind::kGenerate, end = !to_file;
  if (!to_file && !c_.stream.is_there()) return fail("no_stream_fd", false);
  if (!to_file && c_.stream.lost()) return fail("stream_closed", false);
  if (!engine_) return fail("target_parked", end);
  if (l.kind == Kind::kRestore && !snapshots_.contains(l.slot)) return fail("empty_slot", end);
  auto ids = read_prompt(l);
  if (!ids) return fail(ids.error().message(), end);
  if (l.snap && l.snap->position > int(ids->size())) return fail("bad_args", end);
  Result<std::string> out = std::string();
  if (to_file) {
    if (out = c_.paths.output(l.out); !out) return fail(out.error().message(), end);
    if (auto ok = check_output(*out); !ok) return fail("write_out: " + ok.error().message(), end);
  }

  Request r{.prompt = std::move(*ids), .max_tokens = l.n, .sampling = l.sampling, .draft = drafts_};
  if (!l.seed_given) r.sampling.seed = std::random_device{}();
  last_ = r.prompt;
  if (l.snap) {  // its state is left exactly there
    Request first = r;
    first.prompt.resize(size_t(l.snap->position));
    first.max_tokens = 0;
    if (const Answer a = generate(first, false); !a.error.empty()) return fail(a.error, end);
    snapshots_[l.snap->slot] = first.prompt;
    c_.say(fmt::format("[snap] inline slot={} cur_pos={}", l.snap->slot, l.snap->position));
  }
  const Answer a = generate(std::move(r), !to_file);
  last_.insert(last_.end(), a.tokens.begin(), a.tokens.end());
  if (!a.error.empty()) return fail(a.error, end);
  if (!to_file && c_.stream.lost()) return fail("stream_closed", false);

  const Usage& u = a.usage;
  std::string line = fmt::format("ok N={} gen={}", u.prompt, u.generated);
  if (l.kind == Kind::kRestore) line += fmt::format(" prefix_len={} (RESTORE slot={})", u.cached, l.slot);
  if (l.kind != Kind::kRestore)
    line += fmt::format(" prefill_s={:.3f} decode_s={:.3f} decode_tok_s={:.1f}", u.prefill_s, u.decode_s,
                        u.decode_s > 0 ? u.decoded / u.decode_s : 0.);
  if (to_file) {
    auto file = OutputFile::create(*out);
    Status ok = file ? file->write(counted_ids(a.tokens)) : Status(file.error());
    if (ok) ok = file->finish();
    if (!ok) return fail("write_out: " + ok.error().message(), end);
    line += " out=" + l.out;
  } else {
    line += fmt::format(" stream_fd={}", c_.stream.fd());
  }
  c_.say(line);
  if (!to_file) c_.stream.end();
}

}  // namespace facet
