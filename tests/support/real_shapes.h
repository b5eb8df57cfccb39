#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "formats/synth.h"
#include "support/bytes.h"
#include "support/must.h"

// Headers with the shapes of the published models, whose weights are holes, and edits that make them contradict
// themselves.
namespace facet::test {

// For files of holes: in memory, where there is room to name them. On a disk the system reads far ahead in holes.
class HolesDir : public TempDir {
 public:
  HolesDir() : TempDir(::access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp") {}
};

// The plan's file with zeros for weights, which take no room on the disk.
inline std::string write_header(const SynthPlan& plan, const TempDir& dir, const std::string& name) {
  const std::string path = dir.file(name), part = dir.file("writing");
  GgufWriter w;
  for (const SynthMeta& m : plan.meta) std::visit([&](const auto& v) { w.add(m.key, v); }, m.v);
  for (const SynthTensor& t : plan.tensors) w.add_tensor(t.name, t.type, t.ne);
  EXPECT_TRUE(w.begin(part));
  EXPECT_TRUE(w.write(std::vector<std::byte>(size_t(2) << 20)));  // the header goes to the file before it
  std::filesystem::rename(part + ".part", path);
  std::filesystem::resize_file(path, w.total_bytes());
  return path;
}

using Edit = std::function<void(SynthPlan&)>;
inline SynthPlan shape(const std::string& preset, const std::string& type = "Q8_0") {
  SynthPlan p = must(synth_plan(preset, type));
  // A large one comes first, so that there is something to write before the rest.
  const auto elements = [](const SynthTensor& t) {
    return std::accumulate(t.ne.begin(), t.ne.end(), int64_t(1), std::multiplies<>());
  };
  auto first = std::find_if(p.tensors.begin(), p.tensors.end(), [](auto& t) { return t.name == "token_embd.weight"; });
  if (first == p.tensors.end())
    first = std::max_element(p.tensors.begin(), p.tensors.end(),
                             [&](auto& a, auto& b) { return elements(a) < elements(b); });
  std::rotate(p.tensors.begin(), first, first + 1);
  return p;
}
template <class T>
Edit set(const std::string& key, T v) {
  return [=](SynthPlan& p) {
    for (SynthMeta& m : p.meta)
      if (m.key == key) return void(m.v = v);
    p.meta.push_back({key, v});
  };
}
inline Edit drop(const std::string& key) {
  return [=](SynthPlan& p) { std::erase_if(p.meta, [&](auto& m) { return m.key == key; }); };
}
inline Edit both(Edit a, Edit b) {
  return [=](SynthPlan& p) { a(p), b(p); };
}

}  // namespace facet::test
