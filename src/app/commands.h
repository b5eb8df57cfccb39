#pragma once
#include <CLI/CLI.hpp>
#include <string>

namespace facet {

// Exit codes of the program: 0 success, 1 failure, 2 usage, 130 ended by Ctrl-C.
enum Exit : int { kExitOk = 0, kExitFailure = 1, kExitUsage = 2, kExitInterrupted = 130 };

// All subcommands, as the program and its manual have them.
void add_commands(CLI::App& app, int& rc);

// Each adds one subcommand to the program, with its options; its callback stores the exit code in rc.
// One subcommand a file (cmd_<name>.cpp). Sorted as --help prints them.
void add_chat(CLI::App& app, int& rc);
void add_run(CLI::App& app, int& rc);
void add_serve(CLI::App& app, int& rc);
void add_daemon(CLI::App& app, int& rc);
void add_logits(CLI::App& app, int& rc);
void add_draft(CLI::App& app, int& rc);
void add_eval(CLI::App& app, int& rc);
void add_quality(CLI::App& app, int& rc);
void add_bench(CLI::App& app, int& rc);
void add_bench_spec(CLI::App& bench, int& rc);  // below bench
void add_bench_matrix(CLI::App& bench, int& rc);
void add_plan(CLI::App& app, int& rc);
void add_tokenize(CLI::App& app, int& rc);  // tokenize, detokenize
void add_render(CLI::App& app, int& rc);    // render, parse
void add_download(CLI::App& app, int& rc);
void add_ls(CLI::App& app, int& rc);
void add_rm(CLI::App& app, int& rc);  // in cmd_ls.cpp
void add_inspect(CLI::App& app, int& rc);
void add_quantize(CLI::App& app, int& rc);
void add_convert(CLI::App& app, int& rc);
void add_compare(CLI::App& app, int& rc);  // in cmd_convert.cpp
void add_synth(CLI::App& app, int& rc);
void add_help(CLI::App& app, int& rc);
void add_version(CLI::App& app, int& rc);  // in cmd_help.cpp

// Where facet quality leaves its report, and facet plan looks for it.
std::string quality_path(const std::string& model);

}  // namespace facet
