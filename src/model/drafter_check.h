#pragma once
#include <fmt/format.h>

#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "model/drafter_file.h"
#include "model/types.h"

namespace facet {

// Checks of a drafter file; remembers the first failure, so that a list of checks needs one test at its end.
class DrafterCheck {
 public:
  explicit DrafterCheck(const DrafterFile& f) : f_(f) {}
  const std::optional<Error>& error() const { return error_; }
  explicit operator bool() const { return !error_; }

  void fail(const std::string& key, const std::string& expected, const std::string& found, const std::string& hint) {
    if (!error_) error_ = Error{f_.path(), fmt::format("{}: expected {}, found {}", key, expected, found), hint};
  }
  // A fact about the target.
  void fits(const std::string& key, int64_t target, int64_t found) {
    if (target != found)
      fail(key, fmt::format("{}, as the target has", target), fmt::format("{}", found),
           "the drafter was made for another target");
  }
  // What metadata says beside what the tensors are.
  void agrees(const std::string& key, const std::optional<int64_t>& said, int64_t tensors) {
    if (said && *said != tensors)
      fail(key, fmt::format("{}, as the tensors have", tensors), fmt::format("{}", *said),
           "metadata and tensors disagree; convert the drafter again");
  }
  int64_t in(const std::string& key, const std::optional<int64_t>& v, int64_t min, int64_t max) {
    if (v && *v >= min && *v <= max) return *v;
    fail(key, fmt::format("an integer in [{}, {}]", min, max), v ? fmt::format("{}", *v) : "none",
         "convert or download the drafter again");
    return min;
  }
  double real_in(const std::string& key, const std::optional<double>& v, double min, double max) {
    if (v && *v >= min && *v <= max) return *v;
    fail(key, fmt::format("a number in [{}, {}]", min, max), v ? fmt::format("{}", *v) : "none",
         "convert or download the drafter again");
    return min;
  }
  // Dimension d (0: contiguous) of a tensor, in [1, max].
  int64_t dim(const std::string& name, int d, int64_t max) {
    const TensorView* t = f_.find(name);
    if (!t)
      return fail(name, "a tensor of this name", "none", "the file is incomplete; download or convert it again"), 1;
    if (t->n_dims <= d || t->ne[size_t(d)] < 1 || t->ne[size_t(d)] > max)
      return fail(name, fmt::format("at most {} in dimension {}", max, d), shape_string(*t),
                  "the file is damaged or no drafter"),
             1;
    return t->ne[size_t(d)];
  }
  // a / b without remainder.
  int64_t ratio(const std::string& what, int64_t a, int64_t b) {
    if (b > 0 && a % b == 0 && a > 0) return a / b;
    fail(what, fmt::format("a multiple of {}", b), fmt::format("{}", a),
         "the tensors of the file contradict each other");
    return 1;
  }

 private:
  const DrafterFile& f_;
  std::optional<Error> error_;
};

// Which of the target's layers are tapped, n_tap of them. Guessing them would give worthless drafts, so they must be in
// the file.
std::vector<int> read_taps(DrafterCheck& check, const DrafterMeta& meta, const ModelCfg& target, int64_t n_tap);
// d2t holds a target id for each of the n_row rows of a smaller head: as it is (I64 in GGUF), or less the row
// (safetensors). Empty: the head has the target's rows.
std::vector<int32_t> read_id_map(DrafterCheck& check, const DrafterFile& f, const ModelCfg& target, int n_row);

inline bool head_dim_known(int64_t e) { return e == 32 || e == 64 || e == 128 || e == 256 || e == 512; }

// theta^(-2i / E) for the pairs of a head of width E.
inline std::vector<double> rope_freqs(double theta, int head_dim) {
  std::vector<double> f(static_cast<size_t>(head_dim / 2));
  for (size_t i = 0; i < f.size(); ++i) f[i] = std::pow(theta, -2.0 * double(i) / head_dim);
  return f;
}

}  // namespace facet
