#include "model/drafter_check.h"

#include <algorithm>
#include <cstring>
#include <functional>

namespace facet {
namespace {

bool is_ascending(const std::vector<int32_t>& ids) {
  return !ids.empty() && std::adjacent_find(ids.begin(), ids.end(), std::greater_equal<>()) == ids.end();
}

// Empty: one is outside of the vocabulary; wrong: what was expected, found, and to do.
std::vector<int32_t> id_map_of(const TensorView& t, int n_vocab, bool offsets, Error& wrong) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < t.n_elements(); ++i) {
    int64_t id;
    std::memcpy(&id, t.data.data() + 8 * i, 8);
    if (id < -n_vocab || id > n_vocab || (id += offsets ? i : 0) < 0 || id >= n_vocab) {
      wrong = {fmt::format("tokens in [0, {})", n_vocab), fmt::format("{} for row {}", id, i),
               "the drafter was made for another vocabulary"};
      return {};
    }
    ids.push_back(int32_t(id));
  }
  return ids;
}

}  // namespace

std::vector<int> read_taps(DrafterCheck& check, const DrafterMeta& meta, const ModelCfg& target, int64_t n_tap) {
  std::vector<int> taps;
  if (meta.taps.empty())
    return check.fail("target_layer_ids", fmt::format("{} layers of the target", n_tap), "none",
                      "convert the drafter again, with its config.json"),
           taps;
  if (int64_t(meta.taps.size()) != n_tap)
    return check.fail("target_layer_ids", fmt::format("{} layers, as fc.weight has columns for", n_tap),
                      fmt::format("{}", meta.taps.size()), "convert the drafter again"),
           taps;
  for (size_t i = 0; i < meta.taps.size(); ++i) {
    // The last layer's output is never tapped: other engines mean another tensor by it.
    if (meta.taps[i] < 0 || meta.taps[i] >= target.n_layer() - 1 || (i > 0 && meta.taps[i] <= meta.taps[i - 1]))
      return check.fail(
                 "target_layer_ids",
                 fmt::format("ascending layers in [0, {}) of the target's {}", target.n_layer() - 1, target.n_layer()),
                 fmt::format("{} at place {}", meta.taps[i], i), "the drafter was made for another target"),
             taps;
    taps.push_back(int(meta.taps[i]));
  }
  return taps;
}

std::vector<int32_t> read_id_map(DrafterCheck& check, const DrafterFile& f, const ModelCfg& target, int n_row) {
  const TensorView* t = f.find("d2t");
  if (!t) {
    if (n_row != target.n_vocab) check.fits("vocabulary of output.weight", target.n_vocab, n_row);
    return {};
  }
  if (t->type != DType::kI64 || t->n_elements() != n_row)
    return check.fail("d2t", fmt::format("I64 [{}], one for each row of the head", n_row),
                      fmt::format("{} {}", dtype_name(t->type), shape_string(*t)), "convert the drafter again"),
           std::vector<int32_t>{};
  // Rows are in the order of their tokens. Where only the other reading gives that, the file has it.
  const bool offsets = f.dialect().starts_with("safetensors");
  Error wrong, other;
  std::vector<int32_t> ids = id_map_of(*t, target.n_vocab, offsets, wrong);
  if (is_ascending(ids)) return ids;
  if (auto otherwise = id_map_of(*t, target.n_vocab, !offsets, other); is_ascending(otherwise)) return otherwise;
  if (ids.empty()) check.fail("d2t", wrong.where, wrong.what, wrong.hint);
  return ids;
}

}  // namespace facet
