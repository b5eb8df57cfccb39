#include "tools/energy.h"

#include "base/nvml.h"
#if FACET_CUDA
#include "backend/cuda/device.h"
#endif

namespace facet {

struct EnergyMeter::Impl {
  Nvml nvml;
  Nvml::Device device = nullptr;
};

EnergyMeter::EnergyMeter([[maybe_unused]] const std::string& backend, [[maybe_unused]] int gpu) {
#if FACET_CUDA
  if (backend != "cuda") return;
  auto info = cuda::device_info(gpu);
  if (!info) return;
  impl_ = std::make_unique<Impl>();
  impl_->device = impl_->nvml.device_at(info->pci_bus_id);  // CUDA and NVML may number GPUs differently
#endif
}
EnergyMeter::~EnergyMeter() = default;

std::optional<double> EnergyMeter::joules() const {
  if (!impl_ || !impl_->device) return std::nullopt;
  return impl_->nvml.joules(impl_->device);
}

}  // namespace facet
