#include "backend/select.h"

#include <algorithm>
#include <numeric>

namespace facet {

int choose_blocks(const SelectSpec& spec, const float* score, int n_row, int64_t stride, int n_block, int row0,
                  int head, int32_t* index, int32_t* sample) {
  std::fill_n(sample, kSampleBlocks, -1);
  std::vector<int32_t> free;
  for (int b = 0; b < n_block; ++b)
    if (!select_always(b, row0)) free.push_back(b);
  if (free.empty()) {
    std::iota(index, index + n_block, 0);
    return n_block;
  }
  const size_t n = size_t(n_block);
  std::vector<float> share(size_t(n_row) * n), weight(n), alone(n);
  for (int r = 0; r < n_row; ++r) {
    const float* z = score + r * stride;
    const float top = *std::max_element(z, z + n_block);
    float sum = 0, sharp = 0;
    for (int b = 0; b < n_block; ++b)
      sum += std::exp(kSelectSpread * (z[b] - top)), sharp += std::exp(kMeanRows * (z[b] - top));
    for (int b = 0; b < n_block; ++b) {
      const float a = std::exp(kSelectSpread * (z[b] - top)) / sum;
      share[size_t(r) * size_t(n_block) + size_t(b)] = a;
      weight[size_t(b)] += a / float(n_row);
      alone[size_t(b)] = std::max(alone[size_t(b)], std::exp(kMeanRows * (z[b] - top)) / sharp);
    }
  }
  for (size_t b = 0; b < weight.size(); ++b) weight[b] = std::max(weight[b], kSelectAlone * alone[b]);
  std::stable_sort(free.begin(), free.end(),
                   [&](int32_t a, int32_t b) { return weight[size_t(a)] > weight[size_t(b)]; });
  const float target = spec.gamma;
  const int n_free = int(free.size());
  int need = target >= 1 ? n_free : 0;
  for (int r = 0; r < n_row && need < n_free; ++r) {
    const float* a = share.data() + size_t(r) * size_t(n_block);
    float mass = 0;
    for (int b = 0; b < n_block; ++b)
      if (select_always(b, row0)) mass += a[b];
    int more = 0;
    while (more < n_free && mass < target) mass += a[free[size_t(more++)]];
    need = std::max(need, more);
  }
  need = select_count(spec, need, n_block - n_free, n_free);
  for (int i = 0; i < kSampleBlocks; ++i)
    if (const int at = select_sample(i, n_free - need, row0, head); at >= 0) sample[i] = free[size_t(need + at)];
  free.resize(size_t(need));
  for (int b = 0; b < n_block; ++b)
    if (select_always(b, row0)) free.push_back(b);
  std::sort(free.begin(), free.end());
  std::copy(free.begin(), free.end(), index);
  return int(free.size());
}

}  // namespace facet
