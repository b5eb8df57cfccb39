#pragma once
#include <algorithm>
#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

#include "backend/backend.h"
#include "model/mmproj.h"

namespace facet {

// Weights and scratch of the encoders of pictures (vision.h) and sound (audio.h). An empty Vec or Weight means that the
// encoder has none.

// A matrix whose input and output are clamped, in models that were trained so.
template <class B>
struct ClippedLinear {
  typename B::Weight w{};
  Clip clip{};
};

template <class B>
struct VisionLayerW {
  typename B::Vec ln1{}, q_norm{}, k_norm{}, attn_post{}, ln2{}, ffn_post{};
  ClippedLinear<B> wq, wk, wv, wo, gate, up, down;
  float out_scale = 1.f;
};

template <class B>
struct VisionW {
  typename B::Weight patch_embd{};  // [D, 3 P P], columns channel by channel
  typename B::Weight position{};    // [2 N, D]: of columns, then of rows
  typename B::Freqs freqs{};        // [E / 4]
  std::vector<VisionLayerW<B>> layer;
  typename B::Vec std_bias{}, std_scale{};
  ClippedLinear<B> project;  // [D_out, D]
  // gemma4uv
  typename B::Vec patch_bias{};  // [D], negative: what shift_scale takes away
  typename B::Vec norm_gain[3] = {}, norm_bias[3] = {};
};

// Scratch for max_patch rows of input, of all pictures of a batch.
template <class B>
struct VisionWork {
  typename B::Rows p;           // [T, 3 P P] pixels
  typename B::Rows x, h, y;     // [T, D]
  typename B::Rows q, k, v, a;  // [T, D]
  typename B::Rows g, u;        // [T, F]
  typename B::Rows c;           // [T, max(D, F)] a clamped input
  typename B::Rows s, out;      // [S, D], [S, D_out]
};

template <class B>
struct AudioLayerW {
  struct Ffn {
    typename B::Vec pre{}, post{};  // post: halved, as the branch is
    ClippedLinear<B> up, down;
  } ffn[2];
  typename B::Vec attn_pre{}, attn_post{}, q_scale{}, k_scale{};
  ClippedLinear<B> wq, wk, wv, wo;
  typename B::Weight rel{};  // [D, D], of distances
  typename B::Vec conv_pre{}, conv_post{}, conv{};
  ClippedLinear<B> conv_in, conv_out;  // [2 D, D], [D, D]
  typename B::Vec out_norm{};
};

template <class B>
struct AudioW {
  typename B::Vec conv[2] = {}, conv_norm[2] = {};  // [3][3][C_in][C_out], [C_out]
  typename B::Weight in{};                          // [D, C_1 M / 4]
  std::vector<AudioLayerW<B>> layer;
  typename B::Rows distance{};  // [distances, D] sines, then cosines
  ClippedLinear<B> out;         // [D_project, D]
  typename B::Vec out_bias{};   // [D_project], negative: what shift_scale takes away
  ClippedLinear<B> project;     // [D_out, D_project]
};

template <class B>
struct AudioWork {
  typename B::Rows m;           // [F, M] mel frames, or [T, samples of a frame]
  typename B::Rows c0, c1;      // [F / 2, M / 2 C_0], [F / 4, M / 4 C_1]
  typename B::Rows x, h, y;     // [T, D]
  typename B::Rows q, k, v, a;  // [T, D]
  typename B::Rows r;           // [distances, D]
  typename B::Rows g;           // [T, max(F, 2 D)]
  typename B::Rows c;           // [T, max(F, D)] a clamped input
  typename B::Rows e, out;      // [T, D_project], [T, D_out]
};

// y = clamp(W clamp(x)). c: room for the clamped x.
template <EncoderBackend B>
void clipped(B& b, typename B::Rows y, typename B::Rows x, const ClippedLinear<B>& l, typename B::Rows c) {
  if (l.clip.clips_input()) {
    c = c.view(x.rows, x.cols);
    b.clamp(c, x, l.clip.in_min, l.clip.in_max);
    x = c;
  }
  b.matmul(y, x, l.w);
  if (l.clip.clips_output()) b.clamp(y, y, l.clip.out_min, l.clip.out_max);
}

// Several of the same x, which is clamped again only where the bounds are others.
template <class B>
struct ClippedProduct {
  typename B::Rows y;
  const ClippedLinear<B>* l;
};
template <EncoderBackend B>
void clipped_of_one(B& b, typename B::Rows x, typename B::Rows c, std::type_identity_t<ClippedProduct<B>> first,
                    std::type_identity_t<ClippedProduct<B>> second,
                    std::type_identity_t<ClippedProduct<B>> third = {}) {
  c = c.view(x.rows, x.cols);
  const Clip* last = nullptr;
  for (const ClippedProduct<B>& p : {first, second, third}) {
    if (!p.l) continue;
    const Clip& clip = p.l->clip;
    if (clip.clips_input() && !(last && clip.same_input(*last))) {
      b.clamp(c, x, clip.in_min, clip.in_max);
      last = &clip;
    }
    b.matmul(p.y, clip.clips_input() ? c : x, p.l->w);
    if (clip.clips_output()) b.clamp(p.y, p.y, clip.out_min, clip.out_max);
  }
}

// A batch of pictures or sounds as a step (verbs.def): of a patch, token is its column and pos its row.
class EncoderStep {
 public:
  struct Grid {
    int width = 0, height = 0;  // in rows of input
  };
  // Pictures one behind the other, each row by row.
  static EncoderStep pictures(std::span<const Grid> grids) {
    EncoderStep e;
    for (const Grid& g : grids) {
      for (int y = 0; y < g.height; ++y)
        for (int x = 0; x < g.width; ++x) e.add(x, y);
      e.end();
    }
    return e;
  }
  // Sounds one behind the other, each of so many tokens.
  static EncoderStep sounds(std::span<const int> n_token) {
    EncoderStep e;
    for (const int n : n_token) {
      for (int t = 0; t < n; ++t) e.add(t, 0);
      e.end();
    }
    return e;
  }
  // Points into this.
  Step step() const {
    Step s;
    s.shape = {
        .n_tok = int(token_.size()), .n_seq = int(kv_len_.size()), .n_long = int(kv_len_.size()), .longest = longest_};
    s.token = token_.data(), s.pos = pos_.data(), s.seq = seq_.data(), s.q_begin = begin_.data();
    s.kv_len = kv_len_.data(), s.slot = kv_len_.data(), s.mask = mask_.data(), s.out_row = kv_len_.data();
    return s;
  }
  int n_tok() const { return int(token_.size()); }

 private:
  void add(int column, int row) {
    token_.push_back(column), pos_.push_back(row), seq_.push_back(int32_t(kv_len_.size()));
  }
  void end() {
    longest_ = std::max(longest_, int(token_.size()) - begin_.back());
    begin_.push_back(int32_t(token_.size())), kv_len_.push_back(0), mask_.push_back(Mask::kBlock);
  }
  std::vector<int32_t> token_, pos_, seq_, begin_{0}, kv_len_;
  std::vector<Mask> mask_;
  int longest_ = 0;
};

}  // namespace facet
