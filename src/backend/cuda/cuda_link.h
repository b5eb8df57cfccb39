#pragma once
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backend/cuda/cuda.h"
#include "backend/cuda/kernels/collectives.h"
#include "backend/shard_spec.h"

namespace facet {

// The link between shards on GPUs (shard_link.h): through their own memory if each reaches that of the others (NVLink,
// PCIe), else through page-locked memory of the host.
//
// One thread gives work to the GPUs' streams, one after another; the GPUs wait for each other on the devices. If a GPU
// does not arrive in time, the program ends with an error that names it.
//
// Tests: FACET_CUDA_PEERS=0 in the environment takes the host's memory whatever the GPUs could do. Each shard needs a
// GPU of its own: a shard that waits on a GPU would keep the other one from running there.
class CudaLink {
 public:
  using Rows = Cuda::Rows;
  using Weight = Cuda::Weight;

  CudaLink() = default;
  ~CudaLink();
  CudaLink(const CudaLink&) = delete;

  // Called before anything else. Memory that cannot be allocated is an error of a shard's status.
  void connect(std::span<const std::unique_ptr<Cuda>> shards);
  void sum(std::span<const Rows> rows, unsigned has);
  void sum(std::span<const Rows> rows, unsigned has, std::span<const Rows> more, unsigned more_has);  // both, at once
  void gather(std::span<const Rows> to, std::span<const Rows> from, const ShardRanges& at);
  void embed(Cuda& b, Rows x, Weight table, const Step& s, float scale, Range own);
  // Ends the program if a GPU waited for another in vain. Called before results are read.
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
