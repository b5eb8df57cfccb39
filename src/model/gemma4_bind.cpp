#include "model/gemma4_bind.h"

#include <algorithm>
#include <charconv>

namespace facet {

TensorFinder::TensorFinder(std::string path, std::span<const TensorView> tensors) : path_(std::move(path)) {
  for (const TensorView& t : tensors) tensors_.emplace(t.name, &t);
}

void TensorFinder::fail(const std::string& what, const std::string& hint) {
  if (!error_) error_ = Error{path_, what, hint};
}

const TensorView* TensorFinder::matrix(const std::string& name, int64_t n_in, int64_t n_out, int64_t n_stack,
                                       bool optional) {
  taken_.insert(name);
  const auto at = tensors_.find(name);
  const TensorView* t = at == tensors_.end() ? nullptr : at->second;
  const std::string shape =
      n_stack > 1 ? fmt::format("[{} x {} x {}]", n_in, n_out, n_stack) : fmt::format("[{} x {}]", n_in, n_out);
  if (!t) {
    if (!optional)
      fail(fmt::format("{}: expected {}, found no such tensor", name, shape),
           "the file is incomplete; download or convert it again");
    return nullptr;
  }
  if (t->ne[0] != n_in || t->ne[1] != n_out || t->ne[2] != n_stack || t->ne[3] != 1) {
    fail(fmt::format("{}: expected {}, found {} {}", name, shape, shape_string(*t), dtype_name(t->type)),
         "metadata and tensors disagree; the file mixes two exports, convert it again");
    return nullptr;
  }
  if (!dtype_info(t->type).matmul) {
    fail(fmt::format("{}: expected a weight type, found {}", name, dtype_name(t->type)),
         "quantise the model to a supported type");
    return nullptr;
  }
  if (const std::string scale = gguf_scale_name(name); !scale.empty() && has(scale)) {
    taken_.insert(scale);
    if (t->scale.empty()) {
      const TensorView& s = *tensors_.at(scale);
      fail(fmt::format("{}: expected F32 [{}], a factor for each matrix of {}, found {} {}", scale, n_stack, name,
                       dtype_name(s.type), shape_string(s)),
           "convert the model again");
      return nullptr;
    }
  }
  return t;
}

std::vector<float> TensorFinder::vector(const std::string& name, int64_t n, bool optional) {
  taken_.insert(name);
  const auto at = tensors_.find(name);
  const TensorView* t = at == tensors_.end() ? nullptr : at->second;
  if (!t) {
    if (!optional)
      fail(fmt::format("{}: expected [{}], found no such tensor", name, n),
           "the file is incomplete; download or convert it again");
    return {};
  }
  if (t->n_elements() != n || t->ne[0] != n || !dtype_info(t->type).matmul || dtype_info(t->type).block != 1) {
    fail(fmt::format("{}: expected F32 [{}], found {} {}", name, n, dtype_name(t->type), shape_string(*t)),
         "convert the model again");
    return {};
  }
  std::vector<float> v(static_cast<size_t>(n));
  dequantize_row(t->type, t->data.data(), v.data(), n);
  return v;
}

std::vector<std::string> TensorFinder::untaken() const {
  std::vector<std::string> names;
  for (const auto& [name, t] : tensors_)
    if (!taken_.contains(name)) names.push_back(name);
  return names;
}

Status TensorFinder::finish() {
  if (error_) return *error_;
  for (const auto& [name, t] : tensors_)
    if (name.starts_with("blk.") && !taken_.contains(name) && !name.ends_with(".input_scale"))
      return Error{path_, fmt::format("{}: expected only the tensors of a known layer, found this one", name),
                   "the model has a part facet does not know and would ignore; use a plain text export"};
  return Ok{};
}

int64_t work_elements(const ModelCfg& m, int max_tok, int max_out) {
  const int64_t D = m.d_model, ple = int64_t(m.n_layer()) * m.d_ple;
  const int64_t per_tok = 3 * D + m.max_q_cols() + std::max<int64_t>(m.max_q_cols(), D) + 2 * m.max_kv_cols() +
                          std::max(m.max_d_ff(), m.d_ple) + (m.n_expert > 0 ? 2 * D : 0) + 2 * ple;
  return per_tok * max_tok + (D + m.n_vocab) * max_out;
}

BackendLimits backend_limits(const ModelCfg& m, int max_tok, int64_t max_rows) {
  BackendLimits l;
  l.max_tok = max_tok;
  l.max_rows = max_rows;
  l.max_cols = std::max({m.d_model, m.max_q_cols(), m.max_d_ff(), m.d_expert, m.n_layer() * m.d_ple});
  // Of a vocabulary, only one that is small: a step has few rows of logits.
  const int most_rows = std::max(
      {m.max_q_cols(), m.max_kv_cols(), m.max_d_ff(), m.n_layer() * m.d_ple, m.n_vocab <= 65536 ? m.n_vocab : 0});
  l.max_matrix = int64_t(most_rows) * m.d_model;
  l.n_q_head = m.n_q_head;
  for (const LayerCfg& c : m.layer) {
    l.n_group = std::max(l.n_group, m.n_q_head / c.n_kv_head);
    l.head_dim = std::max(l.head_dim, c.head_dim);
    if (c.window == 0) l.n_kv_head = std::max(l.n_kv_head, c.n_kv_head);
  }
  l.n_expert = m.n_expert;
  l.n_expert_used = m.n_expert_used;
  l.d_expert = m.d_expert;
  l.d_moe = m.n_expert > 0 ? m.d_model : 0;
  return l;
}

}  // namespace facet
