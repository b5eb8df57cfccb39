#include "base/nvml.h"

#include <dlfcn.h>

namespace facet {

template <class F>
F Nvml::get(const char* name) const {
  return library_ ? reinterpret_cast<F>(::dlsym(library_, name)) : nullptr;
}

Nvml::Nvml() : library_(::dlopen("libnvidia-ml.so.1", RTLD_NOW)) {
  if (!library_) return;
  const auto init = get<int (*)()>("nvmlInit_v2");
  ready_ = init && init() == 0;
}
Nvml::~Nvml() {
  if (ready_)
    if (const auto end = get<int (*)()>("nvmlShutdown")) end();
  if (library_) ::dlclose(library_);
}

Nvml::Device Nvml::device(unsigned i) const {
  Device d = nullptr;
  const auto f = get<int (*)(unsigned, Device*)>("nvmlDeviceGetHandleByIndex_v2");
  return f && f(i, &d) == 0 ? d : nullptr;
}
Nvml::Device Nvml::device_at(const std::string& pci_bus_id) const {
  Device d = nullptr;
  const auto f = get<int (*)(const char*, Device*)>("nvmlDeviceGetHandleByPciBusId_v2");
  return f && f(pci_bus_id.c_str(), &d) == 0 ? d : nullptr;
}
std::string Nvml::text(const char* function, Device d) const {
  char buffer[96] = "";
  const auto f = get<int (*)(Device, char*, unsigned)>(function);
  return f && f(d, buffer, sizeof buffer) == 0 ? buffer : "";
}
std::string Nvml::driver() const {
  char buffer[96] = "";
  const auto f = get<int (*)(char*, unsigned)>("nvmlSystemGetDriverVersion");
  return f && f(buffer, sizeof buffer) == 0 ? buffer : "";
}
int64_t Nvml::number(const char* function, Device d) const {
  unsigned v = 0;
  const auto f = get<int (*)(Device, unsigned*)>(function);
  return f && f(d, &v) == 0 ? int64_t(v) : -1;
}
int64_t Nvml::clock(const char* function, Device d) const {
  unsigned v = 0;
  const auto f = get<int (*)(Device, int, unsigned*)>(function);
  return f && f(d, 1, &v) == 0 ? int64_t(v) : -1;
}
bool Nvml::memory(Device d, uint64_t& total, uint64_t& free) const {
  uint64_t m[3] = {};  // total, free, used
  const auto f = get<int (*)(Device, uint64_t*)>("nvmlDeviceGetMemoryInfo");
  if (!f || f(d, m) != 0) return false;
  total = m[0], free = m[1];
  return true;
}
bool Nvml::ecc(Device d, unsigned& current, uint64_t& uncorrected) const {
  unsigned pending = 0;
  unsigned long long n = 0;
  const auto mode = get<int (*)(Device, unsigned*, unsigned*)>("nvmlDeviceGetEccMode");
  const auto errors = get<int (*)(Device, int, int, unsigned long long*)>("nvmlDeviceGetTotalEccErrors");
  if (!mode || mode(d, &current, &pending) != 0) return false;
  if (errors) errors(d, 1, 0, &n);  // uncorrected, since the driver was loaded
  uncorrected = n;
  return true;
}
uint64_t Nvml::throttled(Device d) const {
  unsigned long long v = 0;
  const auto f = get<int (*)(Device, unsigned long long*)>("nvmlDeviceGetCurrentClocksThrottleReasons");
  return f && f(d, &v) == 0 ? uint64_t(v) : 0;
}
std::optional<double> Nvml::joules(Device d) const {
  unsigned long long millijoules = 0;
  const auto f = get<int (*)(Device, unsigned long long*)>("nvmlDeviceGetTotalEnergyConsumption");
  if (!f || f(d, &millijoules) != 0) return std::nullopt;
  return double(millijoules) / 1e3;
}

}  // namespace facet
