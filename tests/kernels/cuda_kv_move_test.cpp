// kv_move against moves of rows on the host: rings that wrap, slots, chains in which a moved row is read again.
#include <algorithm>
#include <memory>

#include "backend/cuda/kernels/kv_move.h"
#include "support/on_device.h"

namespace facet::test {
namespace {

struct Side {
  std::vector<std::byte> k, v;
};

TEST(CudaKvMove, AsRowsOfTheHost) {
  NEEDS_GPU();
  constexpr int kSlots = 3;
  struct Shape {
    int64_t cap, k_row, v_row;
    int window;
    bool shared = false;
  };
  const Shape shapes[] = {{64, 136, 72, 0}, {24, 1024, 544, 16}, {64, 688, 0, 0, true}};
  std::vector<KvLayer> layers;
  std::vector<Side> host;
  std::vector<std::unique_ptr<OnDevice<std::byte>>> k, v;
  unsigned seed = 1;
  for (const Shape& s : shapes) {
    KvLayer l{};
    l.cap = s.cap, l.window = s.window, l.k_row = s.k_row, l.v_row = s.v_row;
    l.k_slot = s.cap * s.k_row, l.v_slot = s.cap * s.v_row, l.shared = s.shared;
    Side side{std::vector<std::byte>(size_t(kSlots * l.k_slot)), std::vector<std::byte>(size_t(kSlots * l.v_slot))};
    for (auto* bytes : {&side.k, &side.v})
      for (std::byte& b : *bytes) b = std::byte((seed = seed * 1664525u + 1013904223u) >> 24);
    k.push_back(std::make_unique<OnDevice<std::byte>>(side.k));
    v.push_back(std::make_unique<OnDevice<std::byte>>(side.v));
    l.k = k.back()->p(), l.v = v.back()->p();
    if (l.shared) l.v = l.k + 136, l.v_row = l.k_row, l.v_slot = l.k_slot;
    layers.push_back(l);
    host.push_back(std::move(side));
  }
  cuda::KvMoves moves;
  for (const auto& [from, to] : {std::pair(41, 40), {43, 41}, {41, 42}, {47, 43}, {48, 44}})
    moves.from[moves.n] = from, moves.to[moves.n++] = to;
  const int slot = 1;
  const OnDevice<KvLayer> views(layers);
  cuda::kv_move(nullptr, views.p(), int(layers.size()), slot, moves);
  for (size_t i = 0; i < layers.size(); ++i) {
    const KvLayer& l = layers[i];
    auto move = [&](std::vector<std::byte>& bytes, int64_t per_slot, int64_t row) {
      auto at = [&](int r) { return bytes.begin() + slot * per_slot + (r % l.cap) * row; };
      for (int m = 0; m < moves.n; ++m) std::copy_n(at(moves.from[m]), row, at(moves.to[m]));
    };
    move(host[i].k, l.k_slot, l.k_row);
    if (!l.shared) move(host[i].v, l.v_slot, l.v_row);
    EXPECT_EQ(k[i]->get(), host[i].k) << "layer " << i;
    EXPECT_EQ(v[i]->get(), host[i].v) << "layer " << i;
  }
}

}  // namespace
}  // namespace facet::test
