#pragma once
#include <cstdint>
#include <optional>
#include <string>

namespace facet {

// What of NVML is asked for, by its stable names. The library belongs to the driver and may be absent; it is opened
// when an object is made.
class Nvml {
 public:
  using Device = void*;
  Nvml();
  ~Nvml();
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;
  bool there() const { return library_ != nullptr; }
  bool ready() const { return ready_; }
  Device device(unsigned i) const;                        // as nvidia-smi numbers them; null: there is none
  Device device_at(const std::string& pci_bus_id) const;  // "00000000:1b:00.0"
  std::string text(const char* function, Device d) const;
  std::string driver() const;
  int64_t number(const char* function, Device d) const;          // -1: it does not say
  int64_t clock(const char* function, Device d) const;           // of the multiprocessors, MHz; -1
  bool memory(Device d, uint64_t& total, uint64_t& free) const;  // bytes
  bool ecc(Device d, unsigned& current, uint64_t& uncorrected) const;
  uint64_t throttled(Device d) const;            // bits of the reasons
  std::optional<double> joules(Device d) const;  // since the driver was loaded; from Volta on

 private:
  template <class F>
  F get(const char* name) const;
  void* library_ = nullptr;
  bool ready_ = false;
};

}  // namespace facet
