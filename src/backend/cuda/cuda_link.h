#pragma once
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backend/cuda/cuda.h"
#include "backend/cuda/kernels/collectives.h"
#include "backend/shard_spec.h"

namespace facet {

// What shards on GPUs tell each other (shard_link.h): by their own memory where each reaches that of the others
// (NVLink, PCIe), else through page-locked memory of the host.
//
// Work is given to the GPUs' streams, one after another by one thread; they wait for each other on the devices. A GPU
// that does not come ends the program with its name.
//
// Tests: FACET_CUDA_PEERS=0 in the environment takes the host's memory whatever GPUs could do. Shards are on GPUs
// of their own: what waits for another would keep it from the GPU that both have.
class CudaLink {
 public:
  using Rows = Cuda::Rows;
  using Weight = Cuda::Weight;

  CudaLink() = default;
  ~CudaLink();
  CudaLink(const CudaLink&) = delete;

  // Before anything else; memory that is not to be had is an error of a shard's status.
  void connect(std::span<const std::unique_ptr<Cuda>> shards);
  void sum(std::span<const Rows> rows, unsigned has);
  void sum(std::span<const Rows> rows, unsigned has, std::span<const Rows> more, unsigned more_has);  // both, at once
  void gather(std::span<const Rows> to, std::span<const Rows> from, const ShardRanges& at);
  void embed(Cuda& b, Rows x, Weight table, const Step& s, float scale, Range own);
  // Ends the program where a GPU waited for another in vain. Whoever reads results asks first.
  void check() const;
  std::string failure() const;  // empty: none

  bool by_peers() const { return peers_; }
  // Sums of so many floats go through mailboxes; more are added in place, where GPUs reach each other's memory.
  static constexpr int64_t kFewFloats = int64_t(256) << 10;
  static int64_t memory_bytes(int n_shard);  // on each GPU
  // Tests: how long a GPU waits, and where others' words arrive at GPU i.
  void set_spin_timeout(double seconds);
  const cuda::Communicator& communicator(int i) const { return shard_[size_t(i)].x; }

 private:
  static constexpr int64_t kBoxFloats = int64_t(512) << 10;
  static constexpr double kSpinTimeout = 6;  // seconds

  struct Shard {
    Cuda* b = nullptr;
    cuda::Communicator x = {};
    uint64_t* box = nullptr;
    uint32_t* flag = nullptr;
  };
  struct Part {
    std::span<const Rows> rows;
    unsigned has = 0;
  };
  bool is_few(std::span<const Part> parts) const;
  void sum_few(std::span<const Part> parts);
  void sum_in_pieces(const Part& p);
  void sum_in_place(const Part& p);
  template <class F>
  void each(F&& f);
  void allocate(Shard& s, int n);

  std::vector<Shard> shard_;
  bool peers_ = false;
  std::vector<void*> host_;  // page-locked
};

}  // namespace facet
