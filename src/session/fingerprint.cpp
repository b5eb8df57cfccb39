#include "session/fingerprint.h"

#include <algorithm>
#include <variant>

#include "backend/arithmetic.h"
#include "base/hash.h"
#include "session/kv_config.h"
#include "session/stage_layers.h"

namespace facet {
namespace {

constexpr size_t kPiece = 4096, kPieces = 16;

void add(Hash128& h, const TensorView& t) {
  h.add(t.name);
  h.add(int64_t(t.type));
  for (const int64_t n : t.ne) h.add(n);
  if (t.data.size() <= kPiece * kPieces) return h.add(t.data);
  for (size_t i = 0; i < kPieces; ++i) h.add(t.data.subspan((t.data.size() - kPiece) / (kPieces - 1) * i, kPiece));
  h.add(t.data.last(kPiece));
}
void add(Hash128& h, std::span<const TensorView> tensors) {
  h.add(int64_t(tensors.size()));
  for (const TensorView& t : tensors) add(h, t);
}

void add(Hash128& h, const GgufValue& value) {
  std::visit(
      [&](const auto& v) {
        using T = std::decay_t<decltype(v)>;
        if constexpr (std::is_same_v<T, std::string_view>) {
          h.add(v);
        } else if constexpr (std::is_same_v<T, std::vector<std::string_view>>) {
          h.add(int64_t(v.size()));
          for (const std::string_view s : v) h.add(s);
        } else if constexpr (std::is_same_v<T, std::vector<bool>>) {
          h.add(int64_t(v.size()));
          for (const bool b : v) h.add(int64_t(b));
        } else if constexpr (std::is_arithmetic_v<T>) {
          h.add(std::as_bytes(std::span(&v, 1)));
        } else {
          h.add(int64_t(v.size()));
          h.add(std::as_bytes(std::span(v)));
        }
      },
      value.v);
}

void add(Hash128& h, const GgufFile& file) {
  h.add(int64_t(file.meta().size()));
  for (const auto& [key, value] : file.meta()) {
    h.add(key);
    add(h, value);
  }
  add(h, file.tensors());
}
void add(Hash128& h, const DrafterFile& d) {
  h.add(d.dialect());
  h.add(int64_t(d.kind()));
  add(h, d.tensors());
  for (const int64_t t : d.meta().taps) h.add(t);
  h.add(d.meta().theta.has_value() ? std::to_string(*d.meta().theta) : "");
  h.add(d.meta().theta_swa.has_value() ? std::to_string(*d.meta().theta_swa) : "");
  h.add(int64_t(d.meta().window.value_or(0)));
  h.add(int64_t(d.meta().block.value_or(0)));
  for (const bool s : d.meta().sliding) h.add(int64_t(s));
}

}  // namespace

SessionHeader::Fingerprint session_fingerprint(const GgufFile& file, const ModelCfg& m, const EngineConfig& c,
                                               std::span<const DrafterFile> drafters) {
  Hash128 h;
  h.add(FACET_VERSION);
  add(h, file);
  const KvPlan kv = kv_plan(c);
  h.add(kv_type_name(kv.k)), h.add(kv_type_name(kv.v));  // of drafters too
  for (size_t i = 0; i < m.layer.size(); ++i) {
    const LayerCfg& l = m.layer[i];
    if (l.query_only) continue;
    h.add(kv.of_layer(i).name());
    h.add(int64_t(l.window ? ring_rows(l, kv) : 0));
  }
  h.add(c.backend);
  h.add(int64_t(c.backend == "cuda" ? c.chunk : 0));
  if (!c.gpus.empty()) h.add(int64_t(c.gpus.size()));
  if (c.weights_in_ram()) h.add(int64_t(c.experts_on_cpu)), h.add(int64_t(c.ffn_on_cpu));
  if (c.expert_usage && c.experts_on_cpu > 0)
    for (const auto& layer : place_experts(*c.expert_usage, c.experts_on_cpu).slot)
      for (const int16_t slot : layer) h.add(int64_t(slot));
  for (const int n : stage_layers(m, c)) h.add(int64_t(n));
  h.add(int64_t(drafters.size()));
  for (const DrafterFile& d : drafters) add(h, d);
  SessionHeader::Fingerprint f = h.digest();
  // States of another layout, or of other arithmetic, are refused by that name.
  f[kFingerprintLayout] = kv_shared(m, kv) ? 1 : 0;
  f[kFingerprintArithmetic] = kArithmetic;
  return f;
}

std::string file_fingerprint(const GgufFile& file) {
  Hash128 h;
  add(h, file);
  return hex(h.digest());
}
std::string drafter_fingerprint(const DrafterFile& file) {
  Hash128 h;
  add(h, file);
  return hex(h.digest());
}

}  // namespace facet
