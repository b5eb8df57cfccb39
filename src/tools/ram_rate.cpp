#include "tools/ram_rate.h"

#include <fmt/format.h>

#include <algorithm>

#include "tools/bench.h"
#if FACET_CUDA
#include "backend/cuda/device.h"
#include "backend/cuda/kernels/probe.h"
#include "compose/cuda_memory.h"
#endif

namespace facet {

namespace {
// Of what a token reads of a tensor.
double share_in_ram(const WeightsInRam& in_ram, const ExpertUsage* usage, const TensorView& t) {
  if (!in_ram.holds(t.name)) return 0;
  const auto slots = in_ram.slots(t.name);
  if (slots.empty() || !usage) return 1;
  const auto& chosen = usage->chosen[size_t(layer_of_tensor(t.name))];
  double all = 0, there = 0;
  for (size_t e = 0; e < slots.size(); ++e) {
    all += double(chosen[e]);
    if (slots[e] < 0) there += double(chosen[e]);
  }
  return all > 0 ? there / all : 1 - double(in_ram.resident(t.name, t.ne[2])) / double(t.ne[2]);
}
}  // namespace

TokenBytes token_bytes(const GgufFile& file, const ModelCfg& m, const WeightsInRam& in_ram, const ExpertUsage* usage) {
  const auto& all = file.tensors();
  const bool has_head =
      std::any_of(all.begin(), all.end(), [](const TensorView& t) { return t.name == "output.weight"; });
  TokenBytes n;
  for (const TensorView& t : all) {
    int64_t bytes = int64_t(t.data.size());
    if (t.name.ends_with("_exps.weight")) bytes = bytes / std::max(1, m.n_expert) * m.n_expert_used;
    const bool table = t.name == kPerLayerTable || (t.name == "token_embd.weight" && has_head);
    if (table && t.ne[1] > 0) bytes /= t.ne[1];  // a row
    const int64_t there = int64_t(double(bytes) * share_in_ram(in_ram, usage, t));
    n.in_ram += there, n.on_gpu += bytes - there;
  }
  return n;
}

std::string placement_rate([[maybe_unused]] const GgufFile& file, [[maybe_unused]] const ModelCfg& m,
                           [[maybe_unused]] const EngineConfig& c) {
#if FACET_CUDA
  if (c.backend != "cuda" || !c.weights_in_ram()) return "";
  const TokenBytes n = token_bytes(file, m, weights_in_ram(c), c.expert_usage.get());
  const cuda::Device d(c.gpu);
  const double ram = bench_ram_gbps(c.n_threads, c.cpu_isa), gpu = cuda::read_gbps();
  const double seconds = (double(n.in_ram) / ram + double(n.on_gpu) / gpu) / 1e9;
  return fmt::format(
      "at most {:.0f} tokens/s: {:.2f} GB a token from RAM at {:.0f} GB/s ({} threads), {:.2f} GB on the "
      "GPU at {:.0f} GB/s",
      1 / seconds, double(n.in_ram) / 1e9, ram, c.n_threads, double(n.on_gpu) / 1e9, gpu);
#else
  return "";
#endif
}

}  // namespace facet
