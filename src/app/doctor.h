#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "api/engine.h"
#include "app/options.h"

// What `facet doctor` looks at, a function each part.
namespace facet {

struct Finding {
  enum class Level { kOk, kWarn, kFail } level = Level::kOk;
  std::string name = {};  // of the check
  std::string what = {};  // one line
  std::string hint = {};  // what to do; of kOk empty
};

// Findings in order; told as they come.
class Findings {
 public:
  explicit Findings(bool quiet) : quiet_(quiet) {}
  void ok(const std::string& name, const std::string& what) { add({Finding::Level::kOk, name, what, ""}); }
  void warn(const std::string& name, const std::string& what, const std::string& hint) {
    add({Finding::Level::kWarn, name, what, hint});
  }
  void fail(const std::string& name, const std::string& what, const std::string& hint) {
    add({Finding::Level::kFail, name, what, hint});
  }
  void fail(const std::string& name, const Error& e) {
    fail(name, e.where.empty() ? e.what : e.where + ": " + e.what, e.hint);
  }
  const std::vector<Finding>& all() const { return all_; }
  size_t count(Finding::Level level) const;

 private:
  void add(Finding f);
  bool quiet_;
  std::vector<Finding> all_ = {};
};

struct DoctorOptions {
  EngineConfig engine = {};
  DraftOptions draft = {};
  std::string host = "127.0.0.1", cache_disk = {};
  int port = 8080;
  std::string url = {}, key = {}, url_model = {};  // url_model: of its models the one to ask
  bool quick = false;                              // nothing is loaded
  bool json = false;
};

void look_at_machine(Findings& f, const DoctorOptions& o);  // CPU, memory, pages, limits
void look_at_gpu(Findings& f, const DoctorOptions& o);      // by NVML, which the driver has
// The file, its tokenizer, the plan, the drafter; with it loaded, ten prompts. False: it is not usable.
bool look_at_model(Findings& f, DoctorOptions o);
void look_at_service(Findings& f, const DoctorOptions& o);  // the cache's folder, the port
void look_at_url(Findings& f, const DoctorOptions& o);      // a server that runs

void add_doctor(CLI::App& app, int& rc);  // the subcommand

}  // namespace facet
