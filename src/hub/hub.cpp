#include "hub/hub.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <optional>
#include <thread>

#include "base/files.h"
#include "base/print.h"
#include "hub/download.h"
#include "hub/url.h"

namespace facet {
namespace {

namespace fs = std::filesystem;

constexpr int kMostPages = 16;        // of a listing
constexpr int kListingSeconds = 120;  // for a page of it
constexpr int kMostChanges = 3;       // of a repository while it is downloaded

class Fetch {
 public:
  Fetch(const HubConfig& config, HubName name, HubUse use)
      : config_(config), name_(std::move(name)), use_(use), folder_(config.cache + "/" + name_.repo) {}

  Result<std::string> run() {
    const auto cached = choose_files(in_cache(), name_, use_);
    if (config_.offline) return cached ? path_of(*cached) : not_there(cached.error());
    auto http = HubClient::open(config_.http);
    if (!http) return cached ? keep(*cached, http.error()) : Result<std::string>(http.error());
    for (int n = 1;; ++n) {
      auto files = list(*http, cached ? std::min(1, config_.retries) : config_.retries);
      if (!files) return cached ? keep(*cached, files.error()) : Result<std::string>(files.error());
      auto choice = choose_files(*files, name_, use_);
      if (!choice) return choice.error();
      if (!choice->note.empty() && n == 1) config_.note(choice->note);
      bool changed = false;
      const Status ok = fetch(*http, *choice, changed);
      if (ok) return path_of(*choice);
      if (!changed || n == kMostChanges) return ok.error();
      config_.note(name_.repo + " changed on the hub meanwhile; its listing is read again");
    }
  }

 private:
  Result<std::string> path_of(const HubChoice& c) const { return c.folder ? folder_ : folder_ + "/" + c.files[0].path; }

  Result<std::string> not_there(const Error& why) const {
    return Error{name_.text(),
                 fmt::format("--offline: expected it in {}, found {}", config_.cache,
                             in_cache().empty() ? "nothing of it" : why.what),
                 "the same command without --offline downloads it"};
  }
  Result<std::string> keep(const HubChoice& cached, const Error& why) const {
    config_.note(fmt::format("the hub cannot be asked ({}); what the cache has is taken", why.message()));
    return path_of(cached);
  }

  // Complete files of the repository that are here.
  std::vector<RemoteFile> in_cache() const {
    std::vector<RemoteFile> files;
    std::error_code ec;
    for (fs::recursive_directory_iterator it(folder_, ec), end; !ec && it != end && files.size() < kMaxRemoteFiles;
         it.increment(ec)) {
      if (it->is_symlink(ec) || !it->is_regular_file(ec)) continue;
      files.push_back({.path = it->path().string().substr(folder_.size() + 1), .size = it->file_size(ec)});
    }
    std::sort(files.begin(), files.end(), [](const auto& a, const auto& b) { return a.path < b.path; });
    return files;
  }

  // Bytes of an answer that is short.
  Result<std::string> page(HubClient& http, const std::string& url, int retries, HubHead& head) {
    for (int failures = 1;; ++failures) {
      std::string body;
      bool large = false;
      const HubEnd end = http.get(
          url, {},
          [&](const HubHead&, std::span<const std::byte> b) {
            large |= b.size() > kMaxListing - body.size();
            if (!large) body.append(reinterpret_cast<const char*>(b.data()), b.size());
            return !large;
          },
          kListingSeconds);
      if (large)
        return Error{name_.repo, fmt::format("expected a listing of at most {}, found more", amount_of(kMaxListing)),
                     ""};
      head = end.head;
      const bool failed = end.fault != HubEnd::Fault::kNone;
      if (!failed && head.status == 200) return body;
      const Error error = failed ? end.error : status_error(head.status, name_.repo, "", !config_.http.token.empty());
      if (end.fault == HubEnd::Fault::kFinal || (!failed && !may_pass(head.status)) || failures > retries) return error;
      const double wait = retry_wait(failures);
      config_.note(fmt::format("{}; again in {:.1f} s", error.what, wait));
      std::this_thread::sleep_for(std::chrono::duration<double>(wait));
    }
  }

  Result<std::vector<RemoteFile>> list(HubClient& http, int retries) {
    std::vector<RemoteFile> files;
    std::string url = fmt::format("{}/api/models/{}/tree/main?recursive=1", config_.http.endpoint, name_.repo);
    for (int n = 0; n < kMostPages; ++n) {
      HubHead head;
      auto body = page(http, url, retries, head);
      if (!body) return body.error();
      if (auto ok = parse_tree(*body, name_.repo, files); !ok) return ok.error();
      url = next_link(head.link);
      if (url.empty()) return files;
      const auto hub = origin_of(config_.http.endpoint), next = origin_of(url);
      if (!next || *next != *hub)
        return Error{
            name_.repo,
            "expected the next page of its listing at the hub, found it elsewhere: " + on_one_line(url.substr(0, 200)),
            ""};
    }
    return Error{name_.repo, fmt::format("expected at most {} pages of a listing, found more", kMostPages), ""};
  }

  // Whether the file that is here is the one that the hub has.
  Result<bool> is_right(const RemoteFile& f, const std::string& path) {
    auto size = size_of_own_file(path);
    if (!size) return size.error();
    if (!*size || **size != f.size) return false;
    if (f.sha256.empty()) return hash_of(f, path) == f.git;  // small
    auto noted = size_of_own_file(path + ".sha256");
    if (!noted) return noted.error();
    if (*noted)
      if (const auto text = read_file(path + ".sha256", 4096); text && text->size() > 64)
        return text->substr(0, 64) == f.sha256;
    config_.note(fmt::format("{}: nothing says which version it is; it is read", path));
    if (hash_of(f, path) != f.sha256) return false;
    note_hash(f, path);
    return true;
  }

  static std::string hash_of(const RemoteFile& f, const std::string& path) {
    const auto fd = open_regular(path);
    if (!fd) return "";
    Sha sha = file_hash(f);
    std::vector<std::byte> piece(1 << 20);
    bool ok = true;
    for (uint64_t at = 0; ok && at < f.size; at += piece.size()) {
      piece.resize(std::min<uint64_t>(piece.size(), f.size - at));
      ok = bool(read_at(*fd, at, piece, path));
      sha.add(piece);
    }
    close_file(*fd);
    return ok ? sha.hex() : "";
  }

  // Without it the file is read again, once.
  static void note_hash(const RemoteFile& f, const std::string& path) {
    if (f.sha256.empty()) return;
    auto out = OutputFile::create(path + ".sha256");
    if (out && out->write(fmt::format("{}  {}\n", f.sha256, fs::path(path).filename().string())))
      (void)bool(out->finish());
  }

  Status fetch(HubClient& http, const HubChoice& choice, bool& changed) {
    std::vector<const RemoteFile*> missing;
    for (const RemoteFile& f : choice.files) {
      const auto right = is_right(f, folder_ + "/" + f.path);
      if (!right) return right.error();
      if (!*right) missing.push_back(&f);
    }
    if (missing.empty()) return Ok{};
    if (auto ok = make_folders(config_.cache, name_.repo); !ok) return ok;
    auto lock = wait_for_lock();
    if (!lock) return lock.error();
    for (const RemoteFile* f : missing) {
      const std::string path = folder_ + "/" + f->path;
      const auto right = is_right(*f, path);  // another process may have fetched it
      if (!right) return right.error();
      if (*right) continue;
      if (auto ok = fetch_one(http, *f, path, changed); !ok) return ok;
    }
    return Ok{};
  }

  Status fetch_one(HubClient& http, const RemoteFile& f, const std::string& path, bool& changed) {
    if (const auto size = size_of_own_file(path); size && *size)
      config_.note(fmt::format("{} is another one on the hub now", path));
    const std::string below = fs::path(name_.repo + "/" + f.path).parent_path().string();
    if (auto ok = make_folders(config_.cache, below); !ok) return ok;
    const auto start = std::chrono::steady_clock::now();
    Download download(http, config_, name_.repo, f, path);
    const Status ok = download.run();
    if (config_.progress) config_.progress("", 0, 0, 0);  // the bar goes
    changed = download.changed();
    if (!ok) return ok;
    note_hash(f, path);
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    const uint64_t n = f.size - std::min(f.size, download.before());
    config_.note(fmt::format("{}: complete, {} verified; {} in {:.1f} s, {}/s", f.path,
                             f.sha256.empty() ? "hash" : "SHA-256", amount_of(n), seconds,
                             amount_of(uint64_t(double(n) / std::max(seconds, 1e-3)))));
    return Ok{};
  }

  Result<FolderLock> wait_for_lock() {
    for (bool told = false;; std::this_thread::sleep_for(std::chrono::milliseconds(200))) {
      auto lock = FolderLock::take(folder_);
      if (!lock || lock->held()) return lock;
      if (!told) config_.note(fmt::format("another process downloads {}; waiting for it", name_.repo));
      told = true;
    }
  }

  const HubConfig& config_;
  HubName name_;
  HubUse use_;
  std::string folder_;
};

}  // namespace

Result<std::string> fetch_from_hub(const HubConfig& config, const std::string& name, HubUse use) {
  auto parsed = parse_hub_name(name);
  if (!parsed) return parsed.error();
  if (config.cache.empty())
    return Error{"FACET_CACHE", "expected a folder for downloads, found neither it nor XDG_CACHE_HOME nor HOME",
                 "set it"};
  return Fetch(config, std::move(*parsed), use).run();
}

}  // namespace facet
