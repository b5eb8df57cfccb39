#include <algorithm>
#include <random>

#include "compose/prove_impl.h"

namespace facet {

FullMemory::FullMemory(std::unique_ptr<DeviceOps> ops, const EngineConfig& c)
    : c_(c),
      ops_(std::move(ops)),
      rows_(ops_->cache(), {ops_->drafters().begin(), ops_->drafters().end()}),
      sequences_(size_t(ops_->cache().plan().resident())),
      spec_(*ops_, c, sequences_, false) {}

void FullMemory::fill(MemoryProof& proof) {
  for (SlotId s = 0; s < c_.max_seq; ++s) {
    if (!fill(s, c_.n_ctx - rows_of(s))) break;
    ++proof.sequences;
  }
  for (SlotId s = c_.max_seq; s < ops_->cache().plan().resident() && proof.sequences > 0; ++s) {
    if (!rows_.fork(0, s, KvCache::Fork::kMapped)) break;
    ++proof.kept;
  }
  ops_->pool().wait();
}

Status FullMemory::step(int sequences) {
  KvCache& cache = ops_->cache();
  std::vector<Committed> committed;
  std::vector<int32_t> tokens(size_t(cache.plan().max_step), 1);
  ops_->steps().begin();
  int row = 0, out = c_.max_out;
  for (SlotId s = 0; s < sequences; ++s) {
    const int n = rows_of(s);
    if (auto ok = cache.prepare(s, n); !ok) return ok;
    const bool all = s > 0 && n <= out;
    ops_->add({.slot = s, .token = std::span(tokens).first(size_t(n)), .out = all ? Out::kAll : Out::kLast});
    out -= all ? n : 1;
    spec_.begin(s, nullptr);
    committed.push_back({.slot = s, .position = cache.len(s), .row = row, .n = n});
    row += n;
  }
  ops_->forward(/*with_features=*/true);
  const Sampling greedy{.temperature = 0};
  const std::vector<SampleRow> rows(size_t(c_.max_out - out), SampleRow{.sampling = &greedy});
  ops_->sample(rows);
  int32_t drawn;
  ops_->read_ids({&drawn, 1});  // the host waits
  if (drawn >= ops_->model().n_vocab)
    return Error{"--prove", "a step drew a token that is none", "the build is broken"};
  for (const Committed& c : committed) cache.commit(c.slot, c.n);
  spec_.absorb(committed);
  ops_->pool().wait();
  return Ok{};
}

// Of a sequence in the step: the first has a piece of a prompt, the others a draft.
int FullMemory::rows_of(SlotId s) const {
  const int draft = c_.draft.any() ? 1 + c_.draft.rows() : 1;
  return s == 0 ? std::max(1, std::min(c_.chunk, c_.n_ctx / 2) - (c_.max_seq - 1)) : draft;
}

bool FullMemory::fill(SlotId s, int rows) {
  const KvState state{.len = rows, .high = rows};
  if (!fill(ops_->cache(), s, state)) return false;
  for (AnyDrafter* d : ops_->drafters()) {
    KvCache* own = d->rows();
    if ((own && !fill(*own, s, state)) || !d->load(s, rows, {})) {
      rows_.release(s);
      return false;
    }
  }
  return true;
}

// Random bytes that are small numbers in every type of rows.
bool FullMemory::fill(KvCache& c, SlotId s, KvState state) {
  if (!c.restore(s, state)) return false;
  if (random_.empty()) {
    std::mt19937 rng(1);
    for (int i = 0; i < 1 << 20; ++i) random_.push_back(std::byte(0x20 + rng() % 16));
  }
  const auto engine = c.pool().copy_engine();
  engine->after(c.pool().mark());
  const int64_t most = std::min(int64_t(random_.size()), c.pool().copy_engine_bytes());
  for (const KvCache::Part& p : c.parts(s))
    for (int64_t at = 0; at < p.bytes(); at += most)
      engine->from_host(p.at + at, random_.data(), std::min(most, p.bytes() - at));
  return true;
}

}  // namespace facet
