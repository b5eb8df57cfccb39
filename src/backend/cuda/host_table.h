#pragma once
#include <cuda_runtime.h>

#include <array>
#include <cstdint>

#include "backend/cuda/device.h"
#include "backend/cuda/kernels/matmul/layout.h"
#include "backend/step.h"
#include "formats/dtype.h"

namespace facet::cuda {

// A table of embeddings that stays in RAM, such as the per-layer table of E2B and E4B: the rows of a step's tokens come
// to the GPU before its first verb, as a small table in the order of the tokens. The bits are those of the whole table.
class HostTable {
 public:
  explicit HostTable(Device& device) : device_(device) {}
  ~HostTable();
  HostTable(const HostTable&) = delete;

  // The table stays in the file's memory. as: its tiles, without memory; kept: its type in the file or what that becomes.
  void set(const TensorView& t, const TiledMatrix& as, DType kept);
  // False: there is no memory for the rows of so many tokens; Device::status() says so.
  bool reserve(int max_tok);
  static int64_t bytes(const TiledMatrix& as, DType kept, int max_tok);  // of device memory

  // Rows of the step's tokens. s: of the host.
  void bring(const Step& s);
  const TiledMatrix& rows() const { return tiles_; }
  const int32_t* numbers() const { return number_; }  // 0, 1, 2, ...: in place of the tokens

 private:
  struct Buffer {
    std::byte* host = nullptr;
    cudaEvent_t free = nullptr;
  };
  Device& device_;
  TensorView table_;
  DType kept_ = DType::kF32;
  TiledMatrix tiles_;
  uint8_t *raw_ = nullptr, *memory_ = nullptr;
  int32_t* number_ = nullptr;
  int max_tok_ = 0;
  std::array<Buffer, 2> buffer_;
  int next_ = 0;
};

}  // namespace facet::cuda
