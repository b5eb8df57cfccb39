#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "app/commands.h"
#include "app/console.h"
#include "app/hub_models.h"
#include "app/option_checks.h"
#include "base/files.h"
#include "base/print.h"
#include "hub/download.h"

namespace facet {
namespace {

namespace fs = std::filesystem;

struct Downloaded {
  std::string name;  // USER/REPO/FILE
  uint64_t bytes = 0;
};

constexpr size_t kMostFiles = 100000;

// Downloads, complete or not; without the files that only tell of others. No link is followed.
Result<std::vector<Downloaded>> downloads(const std::string& cache) {
  if (cache.empty())
    return Error{"FACET_CACHE", "expected a cache folder, found neither it nor a home", "set FACET_CACHE"};
  std::vector<Downloaded> files;
  std::error_code e;
  fs::recursive_directory_iterator at(cache, e), end;
  if (e == std::errc::no_such_file_or_directory) return files;
  for (; !e && at != end; at.increment(e)) {
    std::error_code of_file;
    if (fs::is_symlink(at->symlink_status(of_file)) || !at->is_regular_file(of_file) || at.depth() < 2) continue;
    const std::string file = at->path().filename().string();
    if (file == "lock" || file.starts_with('.') || file.ends_with(".sha256") || file.ends_with(".etag")) continue;
    files.push_back({at->path().lexically_relative(cache).generic_string(), at->file_size(of_file)});
    if (files.size() > kMostFiles) return Error{cache, "expected at most 100000 files, found more", ""};
  }
  if (e) return Error{cache, "cannot be read: " + e.message(), "check the folder's permissions"};
  std::sort(files.begin(), files.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  return files;
}

int list() {
  const std::string cache = hub_cache_folder();
  const auto files = downloads(cache);
  if (!files) return report(files.error());
  uint64_t sum = 0;
  for (const Downloaded& f : *files) {
    print_out("{:>10}  {}{}\n", amount_of(f.bytes), on_one_line(f.name),
              f.name.ends_with(".part") ? "  (incomplete: the same download goes on)" : "");
    sum += f.bytes;
  }
  print_out("{:>10}  {} file{} in {}\n", amount_of(sum), files->size(), files->size() == 1 ? "" : "s",
            on_one_line(cache));
  return kExitOk;
}

// "USER/REPO" or "USER/REPO/FILE"; nothing that leads out of the folder.
bool is_name(const std::string& name) {
  size_t parts = 0;
  for (size_t at = 0; at <= name.size(); ++parts) {
    const size_t end = std::min(name.find('/', at), name.size());
    const std::string part = name.substr(at, end - at);
    if (part.empty() || part == "." || part == "..") return false;
    at = end + 1;
  }
  return parts >= 2;
}

bool has_links(const std::string& cache, const std::string& name) {
  for (size_t end = 0; end != std::string::npos;) {
    end = name.find('/', end + 1);
    std::error_code e;
    if (fs::is_symlink(fs::symlink_status(cache + "/" + name.substr(0, end), e))) return true;
  }
  return false;
}

Status remove(const std::string& cache, std::string name) {
  if (name.starts_with("hf:")) name.erase(0, 3);
  while (name.ends_with('/')) name.pop_back();
  if (!is_name(name)) return Error{name, "expected USER/REPO or USER/REPO/FILE", "facet ls lists what there is"};
  const std::string path = cache + "/" + name, repo = name.substr(0, name.find('/', name.find('/') + 1));
  std::error_code e;
  if (has_links(cache, name)) return Error{name, "expected a file or a folder, found a link", "remove it by hand"};
  std::vector<std::string> paths;
  for (const char* ending : {"", ".part"})
    if (fs::exists(path + ending, e)) paths.push_back(path + ending);
  if (paths.empty())
    return Error{name, "expected something that was downloaded, found none of that name",
                 "facet ls lists what there is"};
  auto lock = FolderLock::take(cache + "/" + repo);
  if (!lock) return lock.error();
  if (!lock->held()) return Error{name, "another process downloads it", "wait for that, or end it"};
  for (const char* ending : {".sha256", ".part.etag", ".etag"}) paths.push_back(path + ending);
  for (const std::string& p : paths) {
    fs::remove_all(p, e);
    if (e) return Error{p, "cannot be removed: " + e.message(), "check the folder's permissions"};
  }
  if (name == repo) fs::remove(cache + "/" + name.substr(0, name.find('/')), e);  // where nothing else is in it
  print_out("{}: removed\n", on_one_line(name));
  return Ok{};
}

}  // namespace

void add_ls(CLI::App& app, int& rc) {
  CLI::App* cmd = app.add_subcommand("ls", "List the model files that were downloaded");
  cmd->callback([&rc] { rc = list(); });
}

void add_rm(CLI::App& app, int& rc) {
  const auto names = std::make_shared<std::vector<std::string>>();
  CLI::App* cmd = app.add_subcommand("rm", "Remove model files that were downloaded");
  cmd->add_option("NAME", *names, "USER/REPO or USER/REPO/FILE, as facet ls lists them")
      ->required()
      ->check(not_empty());
  cmd->callback([names, &rc] {
    const std::string cache = hub_cache_folder();
    for (const std::string& name : *names)
      if (auto ok = remove(cache, name); !ok) rc = report(ok.error());
  });
}

}  // namespace facet
