#include "backend/expert_usage.h"

#include <algorithm>
#include <tuple>

namespace facet {

std::vector<int64_t>& ExpertUsage::of_layer(int layer, size_t experts) {
  if (size_t(layer) >= chosen.size()) chosen.resize(size_t(layer) + 1);
  std::vector<int64_t>& of = chosen[size_t(layer)];
  of.resize(std::max(of.size(), experts));
  return of;
}

int ExpertPlacement::experts(int layer) const {
  return layer >= 0 && size_t(layer) < slot.size() ? int(slot[size_t(layer)].size()) : 0;
}
int ExpertPlacement::resident(int layer) const {
  if (experts(layer) == 0) return 0;
  const auto& of = slot[size_t(layer)];
  return int(std::count_if(of.begin(), of.end(), [](int16_t s) { return s >= 0; }));
}
double ExpertPlacement::hits(const ExpertUsage& usage) const {
  double all = 0, here = 0;
  for (size_t l = 0; l < usage.chosen.size() && l < slot.size(); ++l)
    for (size_t e = 0; e < usage.chosen[l].size() && e < slot[l].size(); ++e) {
      all += double(usage.chosen[l][e]);
      if (slot[l][e] >= 0) here += double(usage.chosen[l][e]);
    }
  return all > 0 ? here / all : 0;
}

ExpertPlacement place_experts(const ExpertUsage& usage, int layers_in_ram) {
  struct Expert {
    int64_t chosen;
    int layer, number;
  };
  std::vector<Expert> all;
  ExpertPlacement p;
  size_t in_ram = 0;
  for (size_t l = 0; l < usage.chosen.size(); ++l) {
    const auto& of = usage.chosen[l];
    p.slot.emplace_back(of.size(), int16_t(0));
    if (of.empty()) continue;
    if (layers_in_ram-- > 0) in_ram += of.size();
    for (size_t e = 0; e < of.size(); ++e) all.push_back({of[e], int(l), int(e)});
  }
  std::sort(all.begin(), all.end(), [](const Expert& a, const Expert& b) {
    return std::tuple(a.chosen, a.layer, -a.number) < std::tuple(b.chosen, b.layer, -b.number);
  });
  for (size_t i = 0; i < in_ram; ++i) p.slot[size_t(all[i].layer)][size_t(all[i].number)] = -1;
  for (auto& of : p.slot) {
    int16_t next = 0;
    for (int16_t& s : of)
      if (s >= 0) s = next++;
  }
  return p;
}

}  // namespace facet
