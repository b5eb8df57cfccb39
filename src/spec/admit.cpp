#include "spec/admit.h"

#include <algorithm>

namespace facet {

std::vector<int> admit_drafts(std::span<const BatchDraft> drafts, const StepTimes& step, double spent) {
  const int n_seq = int(drafts.size());
  std::vector<int> taken(drafts.size());
  const auto take_all = [&] {
    for (size_t i = 0; i < drafts.size(); ++i) taken[i] = int(drafts[i].chance.size());
    return taken;
  };
  if (n_seq == 0 || step.at(n_seq) <= 0) return take_all();
  struct Row {
    double chance;  // of the draft, or less: what rounding makes of chances must not put it before its parent
    int seq, depth;
  };
  std::vector<Row> open;
  double tokens = n_seq;
  int rows = n_seq;
  for (int i = 0; i < n_seq; ++i) {
    const BatchDraft& d = drafts[size_t(i)];
    const int n = int(d.chance.size()), least = std::clamp(d.least, 0, n);
    taken[size_t(i)] = least, rows += least;
    double most = 1;
    for (int k = 0; k < n; ++k) {
      most = std::min(most, double(d.chance[size_t(k)]));
      if (k < least)
        tokens += most;
      else
        open.push_back({most, i, k});
    }
  }
  std::sort(open.begin(), open.end(), [](const Row& a, const Row& b) {
    return a.chance != b.chance ? a.chance > b.chance : a.depth != b.depth ? a.depth < b.depth : a.seq < b.seq;
  });
  double best = tokens / (spent + step.at(rows));
  size_t n_best = 0;
  for (size_t i = 0; i < open.size(); ++i) {
    tokens += open[i].chance;
    if (const double rate = tokens / (spent + step.at(++rows)); rate > best) best = rate, n_best = i + 1;
  }
  for (const Row& r : std::span(open).first(n_best)) ++taken[size_t(r.seq)];
  return taken;
}

}  // namespace facet
