// Verbs of encoders of pictures and sound.
#include "backend/cuda/cuda.h"
#include "backend/cuda/kernels/encoder/encoder.h"

namespace facet {

using cuda::Mat;

void Cuda::add_positions(Rows x, Weight table, const Step&) {
  CHECK(table.n_in == x.cols, "{}: {} columns, rows of {}", table.name, table.n_in, x.cols);
  acts_.mat(x, false);  // sums that x waits for
  cuda::add_positions(stream_, acts_.written(x, false), table.m, step_);
}
void Cuda::grid_norm_rope(Rows x, Vec gain, Freqs freqs, const Step&, float eps) {
  CHECK(gain.n == 4 * freqs.n, "gain of {}, {} angles", gain.n, freqs.n);
  acts_.mat(x, false);
  cuda::grid_norm_rope(stream_, acts_.written(x, true), gain.n, gain.p, freqs.p, step_, eps);
}
void Cuda::encoder_attend(Rows o, Rows q, Rows k, Rows v, const Step&, int head_dim, float scale) {
  auto rows = [&](const Rows& x) { return cuda::EncoderRows{acts_.rounded(x), x.buffer->stride}; };
  const cuda::EncoderRows a = rows(q), b = rows(k), c = rows(v);
  cuda::encoder_attend(stream_, acts_.written(o, true), a, b, c, step_, head_dim, scale);
}
void Cuda::clamp(Rows y, Rows x, float low, float high) {
  const Mat in = acts_.mat(x, false);
  cuda::clamp(stream_, acts_.written(y, true), in, low, high);
}
void Cuda::pool(Rows y, Rows x, const Step&, int size, float scale) {
  const Mat in = acts_.mat(x, false);
  cuda::pool(stream_, acts_.written(y, false), in, step_, size, scale);
}
void Cuda::shift_scale(Rows x, Vec shift, Vec scale) {
  acts_.mat(x, false);
  cuda::shift_scale(stream_, acts_.written(x, false), shift.p, scale.p, shift ? shift.n : scale.n);
}
void Cuda::layer_norm(Rows y, Rows x, Vec gain, Vec bias, float eps) {
  const Mat in = acts_.mat(x, false);
  cuda::layer_norm(stream_, acts_.written(y, true), in, gain.p, bias.p, gain.n, eps);
}
void Cuda::silu(Rows x) {
  acts_.mat(x, false);
  cuda::silu(stream_, acts_.written(x, true));
}
void Cuda::glu(Rows y, Rows u) {
  const Mat in = acts_.mat(u, false);
  cuda::glu(stream_, acts_.written(y, false), in);
}
void Cuda::conv2d(Rows y, Rows x, Vec kernel, int c_in) {
  const Mat in = acts_.mat(x, false);
  cuda::conv2d(stream_, acts_.written(y, false), in, kernel.p, c_in, kernel.n / (9 * c_in));
}
void Cuda::causal_conv(Rows y, Rows x, Vec kernel, const Step&) {
  const Mat in = acts_.mat(x, false);
  cuda::causal_conv(stream_, acts_.written(y, false), in, kernel.p, kernel.n / x.cols, step_);
}
void Cuda::relative_attend(Rows o, Rows q, Rows k, Rows v, Rows rel, const Step&, RelativeWindow w) {
  const Mat a = acts_.mat(q, false), b = acts_.mat(k, false), c = acts_.mat(v, false), r = acts_.mat(rel, false);
  cuda::relative_attend(stream_, acts_.written(o, true), a, b, c, r, step_, w.head_dim, w.n_key, w.cap);
}

}  // namespace facet
