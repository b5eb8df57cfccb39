#pragma once
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tools/bench_matrix.h"
#include "tools/statistics.h"

namespace facet {

// A quantity of one cell, over its runs, beside the same cell of the first configuration.
struct MatrixValue {
  Sample sample = {};
  // Of what it is more than the first one's, as a share of that: the interval that holds the true one. None: it is the
  // first, or there are no two runs of both.
  std::optional<Interval> change = {};
  // The interval leaves out zero: noise alone gives that in one of twenty tables.
  bool differs() const { return change && !change->holds(0); }
  // It does not, and is so wide that a difference somebody would care about may be in it.
  bool is_too_noisy() const {
    constexpr double kMatters = .05;
    return change && change->holds(0) && (change->low < -kMatters || change->high > kMatters);
  }
};
struct MatrixRow {
  size_t index = 0;         // of its configuration
  std::string config, set;  // config: what is not the same for all, as "q8_0, mtp"
  int context = 0;
  MatrixValue decode = {}, prefill = {}, joules = {};  // tok/s, tok/s, joules a token; n = 0: not measured
  double tokens_per_step = 0;
};
struct MatrixReport {
  std::vector<MatrixRow> rows = {};  // by context, set, configuration
  int comparisons = 0;               // intervals in it; each is of confidence 1 - kNoise / comparisons
};
constexpr double kNoise = .05;  // chance that noise alone makes any verdict of a table

// Of the measurements that belong to the options; a cell without one has no row.
MatrixReport matrix_report(const MatrixOptions& o, std::span<const MatrixRun> runs);

std::string matrix_markdown(const MatrixReport& r, const std::string& title);
// Bars of decoding rates with their deviations, a group for each context and set.
std::string matrix_svg(const MatrixReport& r, const std::string& title);

}  // namespace facet
