#include <fmt/format.h>

#include <chrono>
#include <memory>

#include "app/commands.h"
#include "app/console.h"
#include "app/option_checks.h"
#include "app/progress.h"
#include "base/print.h"
#include "base/threads.h"
#include "formats/requantize.h"

namespace facet {
namespace {

struct Options {
  std::string in, out, type;
  RequantizeOptions how{.n_threads = 0};
  bool pure = false;
};

std::string type_names() {
  std::string names;
  for (const Mixture& m : mixtures()) names += (names.empty() ? "" : ", ") + std::string(m.name);
  return names;
}

int run(Options o) {
  if (o.how.n_threads == 0) o.how.n_threads = physical_cores();
  const Mixture* mixture = find_mixture(o.type);
  auto in = GgufFile::open(o.in);
  if (!in) return report(in.error());
  const auto start = std::chrono::steady_clock::now();
  const auto done = [&] {
    Progress progress("quantising to " + o.out);
    return requantize(*in, o.out, o.pure ? pure(*mixture) : *mixture, o.how,
                      [&](uint64_t n, uint64_t total) { progress.update(n, total); });
  }();
  if (!done) return report(done.error());
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  print_out("{}: {}, {} tensors converted and {} copied, {:.1f} MB to {:.1f} MB in {:.1f} s\n", o.out, mixture->name,
            done->converted, done->copied, double(done->bytes_in) / 1e6, double(done->bytes_out) / 1e6, seconds);
  return kExitOk;
}

}  // namespace

void add_quantize(CLI::App& app, int& rc) {
  auto o = std::make_shared<Options>();  // lives as long as the callback
  CLI::App* cmd = app.add_subcommand("quantize", "Write a model file again with smaller types");
  cmd->add_option("IN", o->in, "GGUF file, or any part of a split one, in F32, F16 or BF16")
      ->required()
      ->check(not_empty());
  cmd->add_option("OUT", o->out, "File to write (.gguf)")->required()->check(not_empty());
  cmd->add_option("TYPE", o->type, "Type or mixture, as llama-quantize names them: " + type_names())
      ->required()
      ->check([](const std::string& name) {
        return find_mixture(name) ? std::string() : fmt::format("'{}' is none of {}", name, type_names());
      });
  cmd->add_option("-t,--threads", o->how.n_threads, "Threads; 0: one per physical core")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  cmd->add_flag("--pure", o->pure,
                "One type for all tensors that are quantised: smaller, and a drafter with such a head drafts sooner");
  cmd->add_flag("--allow-requantize", o->how.allow_requantize, "Accept a source that is quantised already");
  cmd->callback([o, &rc] { rc = run(*o); });
}

}  // namespace facet
