#include "backend/cuda/peers.h"

#include <cstdlib>
#include <cstring>

namespace facet {

bool open_peers(std::span<const std::unique_ptr<Cuda>> gpus) {
  if (const char* peers = std::getenv("FACET_CUDA_PEERS"); peers && std::strcmp(peers, "0") == 0) return false;
  const auto pairs = [&](auto&& f) {
    for (const auto& a : gpus)
      for (const auto& b : gpus)
        if (const int i = a->device().info().id, j = b->device().info().id; i != j && !f(*a, i, j)) return false;
    return true;
  };
  const bool can = pairs([](const Cuda&, int i, int j) {
    int ok = 0;
    return cudaDeviceCanAccessPeer(&ok, i, j) == cudaSuccess && ok != 0;
  });
  return can && pairs([](Cuda& a, int, int j) {
           a.make_current();
           const cudaError_t e = cudaDeviceEnablePeerAccess(j, 0);
           if (e != cudaSuccess) cudaGetLastError();
           return e == cudaSuccess || e == cudaErrorPeerAccessAlreadyEnabled;
         });
}

}  // namespace facet
