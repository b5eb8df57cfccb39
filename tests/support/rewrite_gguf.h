#pragma once
#include <algorithm>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "formats/gguf.h"
#include "support/must.h"

namespace facet::test {

// A GGUF again as another converter would have written it.
struct Rewrite {
  // New names; an empty one leaves the key or tensor out.
  std::function<std::string(const std::string&)> key = [](const std::string& k) { return k; };
  std::function<std::string(const std::string&)> tensor = [](const std::string& n) { return n; };
  std::function<std::vector<std::byte>(const TensorView&)> bytes = {};  // of a tensor; empty: as they are
  std::function<void(GgufWriter&)> more = [](GgufWriter&) {};           // keys behind the others
  struct Extra {
    std::string name;
    DType type;
    std::vector<int64_t> ne;
  };
  std::vector<Extra> extra = {};  // tensors, filled with ones
};

inline void rewrite_gguf(const std::string& from, const std::string& to, const Rewrite& r) {
  const auto in = must(GgufFile::open(from));
  GgufWriter w;
  for (const auto& [k, v] : in.meta())
    if (const std::string name = r.key(k); !name.empty()) w.add_raw(name, v);
  r.more(w);
  auto dims = [](const TensorView& t) {
    return std::vector<int64_t>(t.ne.begin(), t.ne.begin() + std::max(1, t.n_dims));
  };
  for (const TensorView& t : in.tensors())
    if (const std::string name = r.tensor(t.name); !name.empty()) w.add_tensor(name, t.type, dims(t));
  size_t bytes = 0;
  for (const Rewrite::Extra& e : r.extra) w.add_tensor(e.name, e.type, e.ne);
  must(w.begin(to));
  for (const TensorView& t : in.tensors())
    if (!r.tensor(t.name).empty()) must(r.bytes ? w.write(r.bytes(t)) : w.write(t.data));
  for (const Rewrite::Extra& e : r.extra) {
    bytes = row_bytes(e.type, 1);
    for (const int64_t n : e.ne) bytes *= size_t(n);
    must(w.write(std::vector<std::byte>(bytes, std::byte(1))));
  }
  must(w.finish());
}

// Replaces a value of the file: leave the old key out and add this one.
inline std::function<std::string(const std::string&)> without(std::vector<std::string> keys) {
  return [keys = std::move(keys)](const std::string& k) {
    return std::find(keys.begin(), keys.end(), k) == keys.end() ? k : std::string();
  };
}

}  // namespace facet::test
