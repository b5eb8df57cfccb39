// Times sums over all GPUs, alone and with the norm that reads them; JSON lines.
//   facet_cuda_collectives_bench GPU,GPU[,...] [rows ...]
// Medians of graphs launched together. Mailboxes or in place as the link decides;
// FACET_CUDA_PEERS=0: the host's memory.
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "backend/cuda/cuda_link.h"
#include "cuda_bench.h"

using namespace facet;

namespace {

struct Gpus {
  std::vector<std::unique_ptr<Cuda>> b;
  CudaLink link;
  template <class F>
  void each(F&& f) {
    for (size_t i = 0; i < b.size(); ++i) b[i]->make_current(), f(i, *b[i], b[i]->device().stream());
  }
  // Microseconds of one of `calls` calls of f() on all.
  template <class F>
  double time_us(int calls, F&& f) {
    f();
    each([&](size_t, Cuda& x, cudaStream_t) { x.finish(); });
    each([&](size_t, Cuda&, cudaStream_t s) {
      FACET_CUDA_CHECK(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal));
    });
    for (int i = 0; i < calls; ++i) f();
    std::vector<cudaGraphExec_t> exec(b.size());
    std::vector<cudaGraph_t> graph(b.size());
    each([&](size_t i, Cuda&, cudaStream_t s) { FACET_CUDA_CHECK(cudaStreamEndCapture(s, &graph[i])); });
    each([&](size_t i, Cuda&, cudaStream_t s) {
      FACET_CUDA_CHECK(cudaGraphInstantiate(&exec[i], graph[i], 0));
      FACET_CUDA_CHECK(cudaGraphUpload(exec[i], s));
      FACET_CUDA_CHECK(cudaGraphDestroy(graph[i]));
    });
    std::vector<double> us;
    b[0]->make_current();
    cudaEvent_t start, end;
    cudaEventCreate(&start), cudaEventCreate(&end);
    for (int i = 0; i < 12; ++i) {
      f();  // all begin at the same time
      each([&](size_t g, Cuda&, cudaStream_t s) {
        if (g == 0) FACET_CUDA_CHECK(cudaEventRecord(start, s));
        FACET_CUDA_CHECK(cudaGraphLaunch(exec[g], s));
        if (g == 0) FACET_CUDA_CHECK(cudaEventRecord(end, s));
      });
      each([&](size_t, Cuda& x, cudaStream_t) { x.finish(); });
      float ms = 0;
      cudaEventElapsedTime(&ms, start, end);
      if (i >= 2) us.push_back(ms * 1000. / calls);
    }
    link.check();
    for (cudaGraphExec_t e : exec) cudaGraphExecDestroy(e);
    cudaEventDestroy(start), cudaEventDestroy(end);
    std::nth_element(us.begin(), us.begin() + long(us.size() / 2), us.end());
    return us[us.size() / 2];
  }
};

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) return std::fprintf(stderr, "facet_cuda_collectives_bench GPU,GPU[,...] [rows ...]\n"), 2;
  Gpus g;
  const std::string list = argv[1];
  for (size_t at = 0; at < list.size();) {
    const size_t end = std::min(list.find(',', at), list.size());
    g.b.push_back(std::make_unique<Cuda>(std::atoi(list.substr(at, end - at).c_str())));
    at = end + 1;
  }
  g.link.connect(g.b);
  std::vector<int> rows{1, 16, 64, 65, 256, 4096};
  if (argc > 2) rows.clear();
  for (int i = 2; i < argc; ++i) rows.push_back(std::max(1, std::atoi(argv[i])));
  for (const int cols : {2816, 5376})
    for (const int n : rows) {
      std::vector<Cuda::Rows> y, x, h;
      std::vector<Cuda::Vec> gain;
      const std::vector<float> ones(size_t(cols), 1.f);
      g.each([&](size_t, Cuda& b, cudaStream_t) {
        y.push_back(b.new_rows(n, cols)), x.push_back(b.new_rows(n, cols)), h.push_back(b.new_rows(n, cols));
        gain.push_back(b.upload(std::span<const float>(ones)));
      });
      const unsigned all = (1u << g.b.size()) - 1;
      const int calls = n > 256 ? 10 : 50;
      const auto norm = [&] {
        g.each([&](size_t i, Cuda& b, cudaStream_t) {
          b.residual_norm(x[i], h[i], y[i], {.post = gain[i], .next = gain[i]});
        });
      };
      const double sum = g.time_us(calls, [&] { g.link.sum(y, all); });
      const double both = g.time_us(calls, [&] { g.link.sum(y, all), norm(); });
      std::printf(
          "{\"gpus\": \"%s\", \"peers\": %s, \"rows\": %d, \"cols\": %d, \"sum_us\": %.2f, "
          "\"sum_and_norm_us\": %.2f}\n",
          list.c_str(), g.link.by_peers() ? "true" : "false", n, cols, sum, both);
      std::fflush(stdout);
    }
}
