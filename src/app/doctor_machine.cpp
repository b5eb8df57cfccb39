// facet doctor: the machine, the GPU by what its driver tells, and what a service needs of the system.
#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <chrono>
#include <filesystem>
#include <thread>

#include "app/doctor.h"
#include "backend/cpu/isa.h"
#include "base/core_use.h"
#include "base/files.h"
#include "base/nvml.h"
#include "base/reserve.h"
#include "base/threads.h"
#include "cache/kv_plan.h"
#include "compose/plan.h"
#include "server/http.h"

namespace facet {
namespace {

constexpr uint64_t kLittleMemory = uint64_t(1) << 30, kFewFiles = 512, kUsableFiles = 64;

constexpr std::chrono::milliseconds kLookAtCores{300};

std::string trimmed(std::string s) {
  while (!s.empty() && (s.back() == '\n' || s.back() == ' ')) s.pop_back();
  return s;
}
std::string system_text(const std::string& path) {
  const auto text = read_file(path, 1 << 16);
  return text ? trimmed(*text) : "";
}

void look_at_card(Findings& f, const Nvml& nvml, Nvml::Device d) {
  uint64_t total = 0, free = 0;
  if (nvml.memory(d, total, free)) {
    const std::string what = fmt::format("{} of {} free", human_bytes(int64_t(free)), human_bytes(int64_t(total)));
    if (free < total / 2)
      f.warn("gpu memory", what, "other programs hold the rest (nvidia-smi lists them)");
    else
      f.ok("gpu memory", what);
  }
  const int64_t now = nvml.clock("nvmlDeviceGetClockInfo", d), most = nvml.clock("nvmlDeviceGetMaxClockInfo", d);
  const int64_t state = nvml.number("nvmlDeviceGetPerformanceState", d);
  const int64_t power = nvml.number("nvmlDeviceGetPowerUsage", d),
                limit = nvml.number("nvmlDeviceGetEnforcedPowerLimit", d);
  const std::string clocks = fmt::format("P{}, {} of {} MHz, {} of {} W", state, now, most, power / 1000, limit / 1000);
  constexpr uint64_t kSlowed = 0x08 | 0x20 | 0x40 | 0x80;  // hardware, software or thermal slowdown, power brake
  if (nvml.throttled(d) & kSlowed)
    f.warn("gpu clocks", clocks + ", slowed down by heat or power", "cool it, or raise its power limit");
  else
    f.ok("gpu clocks", clocks);
  unsigned on = 0;
  uint64_t errors = 0;
  if (nvml.ecc(d, on, errors)) {
    if (errors > 0)
      f.fail("gpu ecc", fmt::format("{} errors that were not corrected", errors), "reset or replace the card");
    else
      f.ok("gpu ecc", on ? "on, no errors" : "off");
  }
  const int64_t width = nvml.number("nvmlDeviceGetCurrPcieLinkWidth", d),
                widest = nvml.number("nvmlDeviceGetMaxPcieLinkWidth", d);
  const int64_t gen = nvml.number("nvmlDeviceGetCurrPcieLinkGeneration", d);
  if (width > 0 && width < widest)
    f.warn("gpu pcie", fmt::format("generation {}, {} of {} lanes", gen, width, widest),
           "seat the card anew, or use another slot");
  else if (width > 0)
    f.ok("gpu pcie", fmt::format("generation {}, {} lanes", gen, width));
}

}  // namespace

void look_at_machine(Findings& f, const DoctorOptions& o) {
  std::string isas;
  bool vectors = false;
  for (const CpuIsa isa : {CpuIsa::kAvx2, CpuIsa::kAvx512, CpuIsa::kAmx})
    if (has_isa(isa)) isas += fmt::format(" {}", isa_name(isa)), vectors = true;
  const std::string cpu = fmt::format("{} cores,{}", physical_cores(), vectors ? isas : " no vector instructions");
  if (vectors)
    f.ok("cpu", cpu);
  else
    f.warn("cpu", cpu, "it is many times slower without AVX2; use another machine");
  const CoreUse cores;
  std::this_thread::sleep_for(kLookAtCores);
  if (const std::string others = other_programs(cores.since()); !others.empty())
    f.warn("other programs", others, "end them, or start them with nice; until then fewer threads work");
  else
    f.ok("other programs", "use little of the cores");
  const uint64_t free = available_memory();
  if (free < kLittleMemory)
    f.warn("memory", human_bytes(int64_t(free)) + " available", "end other programs");
  else
    f.ok("memory", human_bytes(int64_t(free)) + " available");
  const std::string pages = system_text("/sys/kernel/mm/transparent_hugepage/enabled");
  if (pages.find("[never]") != std::string::npos)
    f.warn("huge pages", "off", "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled");
  else if (!pages.empty())
    f.ok("huge pages", pages);
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    const std::string what = limit.rlim_cur == RLIM_INFINITY ? "any number" : fmt::format("{}", limit.rlim_cur);
    if (limit.rlim_cur < kUsableFiles)
      f.fail("open files", what, "ulimit -n 4096, or LimitNOFILE=4096 of the systemd unit");
    else if (limit.rlim_cur < kFewFiles)
      f.warn("open files", what + ", one for each connection",
             "ulimit -n 4096, or LimitNOFILE=4096 of the systemd unit");
    else
      f.ok("open files", what);
  }
  const bool gpu = std::filesystem::exists("/proc/driver/nvidia/version") && o.engine.backend != "cpu";
  if (::getrlimit(RLIMIT_MEMLOCK, &limit) == 0) {
    const bool any = limit.rlim_cur == RLIM_INFINITY;
    const std::string what = any ? "any amount" : human_bytes(int64_t(limit.rlim_cur));
    if (gpu && !any && limit.rlim_cur < (uint64_t(64) << 20))
      f.warn("locked memory", what, "ulimit -l unlimited, or LimitMEMLOCK=infinity of the systemd unit");
    else
      f.ok("locked memory", what);
  }
}

void look_at_gpu(Findings& f, const DoctorOptions& o) {
  const auto backend = resolve_backend(o.engine.backend, o.engine.gpu);
  if (!backend) return f.fail("gpu", backend.error());
  const Nvml nvml;
  if (!nvml.there() || !nvml.ready()) {
    if (std::filesystem::exists("/proc/driver/nvidia/version"))
      return f.warn("gpu", "there is a driver, and libnvidia-ml.so.1 does not work with it",
                    "install the library of the driver's version, or restart");
    return f.ok("gpu", "none; the model runs on the CPU");
  }
  const auto d = nvml.device(unsigned(o.engine.gpu));
  if (!d)
    return f.warn("gpu", fmt::format("the driver ({}) has no GPU {}", nvml.driver(), o.engine.gpu),
                  "choose another --gpu");
  const std::string card = fmt::format("{}, driver {}", nvml.text("nvmlDeviceGetName", d), nvml.driver());
  if (*backend != "cuda" && o.engine.backend == "auto")
    f.warn("gpu", card + "; this program does not use it", "build it with the cuda preset (docs/gpu.md)");
  else
    f.ok("gpu", card);
  look_at_card(f, nvml, d);
}

void look_at_service(Findings& f, const DoctorOptions& o) {
  if (!o.cache_disk.empty()) {
    std::error_code ec;
    const bool was = std::filesystem::exists(o.cache_disk, ec);
    auto lock = FolderLock::take(o.cache_disk);
    struct stat st {};
    if (!lock)
      f.fail("cache folder", lock.error());
    else if (!lock->held())
      f.fail("cache folder", o.cache_disk + ": another process works in it", "end it, or name another folder");
    else if (auto room = check_room(o.cache_disk + "/x", uint64_t(o.engine.cache_disk_size)); !room)
      f.warn("cache folder", room.error().message(), "make room, or give a smaller --cache-disk-size");
    else if (::stat(o.cache_disk.c_str(), &st) == 0 && (st.st_mode & 0077) != 0)
      f.warn("cache folder", o.cache_disk + ": other users may look into it", "chmod 700 " + o.cache_disk);
    else
      f.ok("cache folder", o.cache_disk);
    if (lock && !was) {
      std::filesystem::remove(o.cache_disk + "/lock", ec);
      std::filesystem::remove(o.cache_disk, ec);
    }
  }
  auto http = HttpServer::listen({.host = o.host, .port = o.port});
  if (!http) return f.fail("port", http.error());
  f.ok("port", fmt::format("{}:{} is free", o.host, o.port));
}

}  // namespace facet
