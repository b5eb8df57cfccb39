#pragma once
#include <concepts>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "backend/expert_usage.h"
#include "backend/select.h"
#include "backend/shard_spec.h"
#include "backend/step.h"
#include "base/result.h"

// What a backend MAY have beside the verbs of backend.h. A caller names the concept where it needs the extra, so that
// this list is the whole of it. MERGED and CHAINED verbs are Has<B>::name.
namespace facet {

// status(): an error if memory ran out while something was opened; nothing may run on the backend then.
template <class B>
concept ReportsStatus = requires(const B b) {
  { b.status() } -> std::same_as<Status>;
};

// make_current(): before work on a thread, because a GPU is current by thread.
template <class B>
concept MakesCurrent = requires(B b) {
  b.make_current();
};

// begin_step(s): takes the arrays of a step (tokens, positions, slots) before its first verb.
template <class B>
concept BeginsSteps = requires(B b, const Step& s) {
  b.begin_step(s);
};

// next_step(s): the newest step again, or its first rows, with the tokens that next_tokens chose (pass.h).
template <class B>
concept TakesNextStep = requires(B b, const Step& s) {
  b.next_step(s);
};

// replay(key, pass): runs pass(), or what was recorded under key for a step of this shape. Returns pass()'s rows.
template <class B>
concept ReplaysPasses = requires(B b, const void* key, typename B::Rows (*pass)()) {
  { b.replay(key, pass) } -> std::same_as<typename B::Rows>;
};

// The parts of a replay, for a backend that is one of several: look(key) says which Way a pass goes, then begin_pass and
// end_pass are around its verbs; what was captured is instantiated once and launched.
template <class B>
concept CapturesPasses = requires(B b, const void* key, typename B::Way way) {
  { b.look(key) } -> std::same_as<typename B::Way>;
  b.begin_pass(way);
  b.end_pass(way);
  b.instantiate_pass();
  b.launch_pass();
  b.shape();
};

// use_graphs(on): whether passes are recorded and replayed.
template <class B>
concept UsesGraphs = requires(B b) {
  b.use_graphs(true);
};

// finish(): waits for everything that was launched.
template <class B>
concept Finishes = requires(B b) {
  b.finish();
};

// Marks among a device's own work, which time verbs there.
//   hold   keeps the device busy while the host runs ahead, so that no verb waits for it
//   laps   waits for everything; milliseconds between one mark since the last call and the next
template <class B>
concept MarksTime = requires(B b) {
  b.mark();
  b.hold();
  { b.laps() } -> std::same_as<std::vector<double>>;
};

// take_file(tensors): all tensors of a model's file, before the first is uploaded.
template <class B>
concept TakesFiles = requires(B b, std::span<const TensorView> tensors) {
  b.take_file(tensors);
};

// take_drafters(): weights that are uploaded from now on are a drafter's.
template <class B>
concept TakesDrafters = requires(B b) {
  b.take_drafters();
};

// take_selected(slot): the blocks that select_blocks chose for a slot since the last call (select.h).
template <class B>
concept CountsSelected = requires(B b, int slot) {
  { b.take_selected(slot) } -> std::same_as<Selected>;
};

// count_experts(usage): adds how often each expert was chosen to it, at the latest when the backend ends.
template <class B>
concept CountsExperts = requires(B b, std::shared_ptr<ExpertUsage> usage) {
  b.count_experts(usage);
};

// upload(tensor, spec): a weight that is divided among shards.
template <class B>
concept UploadsShards = requires(B b, const TensorView& t, const ShardSpec& spec) {
  b.upload(t, spec);
};

// n_shard(): the shards that the backend is made of.
template <class B>
concept CountsShards = requires(const B b) {
  { b.n_shard() } -> std::same_as<int>;
};

// Brings a weight to a backend, divided if the backend is one of several shards.
template <class B>
typename B::Weight upload_shard(B& b, const TensorView& t, const ShardSpec& spec) {
  if constexpr (UploadsShards<B>)
    return b.upload(t, spec);
  else
    return b.upload(t);
}
template <class B>
int shards_of(const B& b) {
  if constexpr (CountsShards<B>)
    return b.n_shard();
  else
    return 1;
}

// kCopiesWeights: upload() copies a weight's bytes, which may go afterwards.
template <class B>
concept CopiesWeights = requires {
  B::kCopiesWeights;
};

// kRoundLight: how much results round that are no product of a rounded input, where that is less than kRound.
template <class B>
concept RoundsLight = requires {
  B::kRoundLight;
};
template <class B>
constexpr double round_light() {
  if constexpr (RoundsLight<B>)
    return B::kRoundLight;
  else
    return B::kRound;
}

// report(): what a judge has counted (lockstep.h).
template <class B>
concept Reports = requires(const B b) {
  b.report();
};

// costs(): prices of verbs (traced.h).
template <class B>
concept PricesVerbs = requires(B b) {
  b.costs();
};

// trace(on), take_laps(): their times are taken on the device.
template <class B>
concept Traces = requires(B b) {
  b.trace(true);
  b.take_laps();
};

// inner(): the backend that a decorator is around.
template <class B>
concept HasInner = requires(B b) {
  b.inner();
};

// Rows whose floats the host reads and writes in place.
template <class Rows>
concept HostRows = requires(const Rows x) {
  { x.row(0) } -> std::convertible_to<float*>;
};

}  // namespace facet
