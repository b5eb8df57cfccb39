#include "model/stages.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "backend/shard_spec.h"

namespace facet {

Result<std::vector<int>> split_layers(const ModelCfg& m, std::span<const double> shares) {
  const int n = int(shares.size()), layers = m.n_layer();
  double total = 0;
  for (const double s : shares) total += s;
  const bool positive = std::all_of(shares.begin(), shares.end(), [](double s) { return s > 0; });
  if (n == 0 || n > std::min(layers, kMaxShards) || !positive || !std::isfinite(total))
    return Error{
        "--split",
        fmt::format("expected up to {} shares above 0, found {}", std::min(layers, kMaxShards), fmt::join(shares, ",")),
        "give one for each GPU, such as 3,2"};
  std::vector<int> v;
  double sum = 0;
  for (int i = 0, end = 0; i < n; ++i) {
    sum += shares[size_t(i)];
    const int left = n - 1 - i;  // stages behind this one
    const int next = std::clamp(int(std::lround(layers * sum / total)), end + 1, layers - left);
    v.push_back(next - end);
    end = next;
  }
  return v;
}

}  // namespace facet
