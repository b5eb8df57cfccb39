#include <fmt/format.h>

#include <filesystem>
#include <memory>

#include "app/commands.h"
#include "app/console.h"
#include "app/option_checks.h"
#include "app/options.h"
#include "app/progress.h"
#include "base/files.h"
#include "base/print.h"
#include "model/types.h"

namespace facet {
namespace {

constexpr int kChunk = 64;  // every token of a step has its row of logits

struct Options {
  EngineConfig engine;
  EngineDebug debug;
  std::string tokens, out;
};

int run(Options& o) {
  if (auto found = find_model(o.engine.model); !found) return report(found.error());
  const std::vector<std::string> inputs = files_of(o.engine.model, {o.tokens});
  if (auto free = check_output(o.out, inputs); !free) return report(free.error());
  std::error_code ec;
  const uintmax_t bytes = std::filesystem::file_size(o.tokens, ec);
  if (o.engine.n_ctx == 0 && !ec) o.engine.n_ctx = int(std::max<uintmax_t>(bytes / 4, 1));
  if (o.engine.chunk == 0) o.engine.chunk = kChunk;
  o.engine.max_out = o.engine.chunk;
  o.engine.snapshots = 0, o.engine.cache_ram = 0;
  auto opened = open_engine(o.engine, {{"none"}}, {}, o.debug);
  if (!opened) return report(opened.error());
  auto ids = read_token_file(o.tokens, (*opened)->model().n_vocab);
  if (!ids) return report(ids.error());
  auto f = OutputFile::create(o.out, inputs);
  if (!f) return report(f.error());
  Status written = Ok{};
  auto progress = std::make_unique<Progress>("logits", Progress::Unit::kTokens);
  auto ok = (*opened)->score(*ids, 0, [&](int first, std::span<const float> rows) {
    if (written) written = f->write(std::as_bytes(rows));
    progress->update(size_t(first) + rows.size() / size_t((*opened)->model().n_vocab), ids->size());
  });
  progress.reset();
  if (!ok) return report(ok.error());
  if (!written) return report(written.error());
  if (written = f->finish(); !written) return report(written.error());
  print_err("{}: [{}, {}] float32\n", o.out, ids->size(), (*opened)->model().n_vocab);
  if (auto verdict = lockstep_verdict(**opened, o.debug); !verdict) return report(verdict.error());
  return kExitOk;
}

}  // namespace

void add_logits(CLI::App& app, int& rc) {
  auto o = std::make_shared<Options>();
  o->engine.chunk = kChunk;
  CLI::App* cmd = app.add_subcommand("logits", "Write the logits of every position of a token sequence");
  add_engine_options(cmd, o->engine);
  cmd->add_option("--tokens", o->tokens, "Token ids (int32, little endian)")->required()->check(not_empty());
  cmd->add_option("--out", o->out, "File for the logits: float32, little endian, row-major [tokens, vocabulary]")
      ->required()
      ->check(not_empty());
  add_lockstep_option(cmd, o->debug);
  cmd->callback([o, &rc] { rc = run(*o); });
}

}  // namespace facet
