#pragma once
#include <memory>
#include <optional>
#include <string>

namespace facet {

// Energy that a GPU has taken, where its driver tells (NVML, Volta and later). The counter moves every 20 to 100 ms:
// what is measured should take a second or more.
class EnergyMeter {
 public:
  EnergyMeter(const std::string& backend, int gpu);
  ~EnergyMeter();
  std::optional<double> joules() const;  // since some moment in the past; none: it is not known

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace facet
