// One file: connections that end, files that change, servers that do not resume, and what arrives wrong.
#include "hub/download.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <thread>

#include "base/print.h"
#include "hub/url.h"

namespace facet {
namespace {

constexpr size_t kPiece = 1 << 20;
constexpr double kSoon = .1, kMostWait = 30, kMostAskedWait = 120;  // seconds

// A validator that If-Range may carry: a strong one.
std::string strong(const std::string& etag) {
  const bool is = etag.size() > 2 && etag.size() < 200 && etag.front() == '"' && etag.back() == '"';
  return is && on_one_line(etag) == etag ? etag : "";
}

// The SHA-256 that a hub gives as the tag of a large file; empty: something else.
std::string sha_in(std::string etag) {
  if (etag.starts_with("W/")) etag.erase(0, 2);
  std::erase(etag, '"');
  const bool hex = etag.size() == 64 && etag.find_first_not_of("0123456789abcdef") == etag.npos;
  return hex ? etag : "";
}

bool is_range(const std::string& content_range, uint64_t from, uint64_t total) {
  return content_range == fmt::format("bytes {}-{}/{}", from, total - 1, total);
}

}  // namespace

std::string amount_of(uint64_t n) {
  if (n >= 1'000'000'000) return fmt::format("{:.2f} GB", double(n) / 1e9);
  if (n >= 1'000'000) return fmt::format("{:.1f} MB", double(n) / 1e6);
  return fmt::format("{:.1f} kB", double(n) / 1e3);
}

Sha file_hash(const RemoteFile& file) {
  if (!file.sha256.empty()) return Sha(Sha::Kind::kSha256);
  Sha sha(Sha::Kind::kSha1);
  std::string head = fmt::format("blob {}", file.size);
  head.push_back('\0');
  sha.add(std::as_bytes(std::span(head)));
  return sha;
}

double retry_wait(int failures) { return std::min(kMostWait, .5 * std::exp2(std::min(failures, 20) - 1)); }

Error status_error(int status, const std::string& repo, const std::string& file, bool has_token) {
  const std::string what = file.empty() ? "its listing" : file;
  const auto error = [&](const char* found, const char* hint) {
    return Error{repo, fmt::format("expected {}, found {} ({})", what, status, found), hint};
  };
  if (status == 401)
    return has_token
               ? error("HF_TOKEN is not accepted", "make a new token, or check the name of the repository")
               : error("not for everybody, or no such repository", "check the name; HF_TOKEN opens what is yours");
  if (status == 403)
    return error("not for this user",
                 "accept the model's licence on the hub, and set HF_TOKEN to a token that may read it");
  if (status == 404) return error("no such repository or file", "check the name");
  if (status == 429) return error("too many requests", "wait a while, or set HF_TOKEN");
  if (status >= 500) return error("the hub has an error", "try again later");
  return error("an answer that no hub gives", "check HF_ENDPOINT and proxies");
}

Download::Download(HubClient& http, const HubConfig& config, std::string repo, RemoteFile file, std::string path)
    : http_(http),
      config_(config),
      repo_(std::move(repo)),
      path_(std::move(path)),
      file_(std::move(file)),
      sha_(file_hash(file_)) {}

Status Download::begin_again(const std::string& why) {
  if (!why.empty()) config_.note(fmt::format("{}: {}; it begins again", file_.path, why));
  sha_ = file_hash(file_);
  before_ = 0, resumed_ = false;
  return part_.clear();
}

Status Download::take_up() {
  const std::string version = path_ + ".part.etag";
  if (auto there = size_of_own_file(version); !there) return there.error();
  // The first line is the hash of the file that was wanted, the second the server's tag.
  if (auto text = read_file(version, 1024); text && part_.size() > 0) {
    const size_t end = text->find('\n');
    if (end == text->npos || text->substr(0, end) != announced_hash(file_))
      return begin_again("changed on the hub since its first part came");
    etag_ = strong(text->substr(end + 1, text->find('\n', end + 1) - end - 1));
  } else if (part_.size() > 0) {
    return begin_again("");
  }
  if (part_.size() > file_.size) return begin_again("what there is has more bytes than the file");
  std::vector<std::byte> piece(kPiece);
  for (uint64_t at = 0; at < part_.size(); at += piece.size()) {
    piece.resize(std::min<uint64_t>(kPiece, part_.size() - at));
    if (auto ok = part_.read(at, piece); !ok) return ok;
    sha_.add(piece);
  }
  before_ = part_.size(), resumed_ = before_ > 0;
  return Ok{};
}

Status Download::remember_version(const std::string& etag) {
  etag_ = strong(etag);
  auto f = OutputFile::create(path_ + ".part.etag");
  if (!f) return f.error();
  if (auto ok = f->write(fmt::format("{}\n{}\n", announced_hash(file_), etag_)); !ok) return ok;
  return f->finish();
}

// Once an answer, before its first byte. False: its body is of no use.
bool Download::begin(const HubHead& head) {
  begun_ = true;
  const std::string sha = sha_in(head.linked_etag);
  if ((!sha.empty() && !file_.sha256.empty() && sha != file_.sha256) ||
      (head.linked_size >= 0 && uint64_t(head.linked_size) != file_.size))
    return changed_ = true, false;
  const uint64_t have = part_.size();
  if (head.status == 206) {
    if (is_range(head.content_range, have, file_.size)) return resumed_ = true;
    // A part of something else. The next attempt asks for all of it.
    failed_ = begin_again("the server sends another part than was asked for");
    return false;
  }
  if (head.status != 200) return false;
  if (head.content_length >= 0 && uint64_t(head.content_length) != file_.size) return changed_ = true, false;
  if (have > 0) {
    const bool other = !etag_.empty() && strong(head.etag) != etag_;
    failed_ = begin_again(other ? "changed on the server meanwhile" : "the server does not resume");
  }
  if (failed_) failed_ = remember_version(head.etag);
  return bool(failed_);
}

bool Download::receive(const HubHead& head, std::span<const std::byte> bytes) {
  if (!begun_ && !begin(head)) return false;
  if (bytes.size() > file_.size - part_.size()) return changed_ = true, false;
  failed_ = part_.write(bytes);
  if (!failed_) return false;
  sha_.add(bytes);
  if (config_.progress) config_.progress(file_.path, before_, part_.size(), file_.size);
  return true;
}

Result<bool> Download::attempt() {
  std::vector<std::string> headers;
  if (part_.size() > 0) {
    headers.push_back(fmt::format("Range: bytes={}-", part_.size()));
    if (!etag_.empty()) headers.push_back("If-Range: " + etag_);
  }
  begun_ = false, wait_s_ = 0;
  const std::string url = fmt::format("{}/{}/resolve/main/{}", config_.http.endpoint, repo_, url_path(file_.path));
  const HubEnd end = http_.get(
      url, headers, [&](const HubHead& h, std::span<const std::byte> b) { return receive(h, b); }, 0);
  if (!failed_) return failed_.error();
  const Error changed{repo_, fmt::format("{} is another one than the hub's listing says", file_.path),
                      "it may be changing: try again later"};
  if (changed_) return changed;
  if (end.fault == HubEnd::Fault::kFinal) return end.error;
  if (end.fault == HubEnd::Fault::kAgain) return lost_ = end.error.what, true;
  const int status = end.head.status;
  if (status == 206 || status == 200) {
    if (!begun_ && !begin(end.head)) return changed_ ? changed : failed_ ? changed : failed_.error();
    lost_ = "the connection ended early";
    return part_.size() < file_.size;
  }
  if (status == 416) {
    if (auto ok = begin_again("the server has no such part of it"); !ok) return ok.error();
    return lost_ = "no such part", true;
  }
  if (status == 404) changed_ = true;  // since the listing
  const Error error = status_error(status, repo_, file_.path, !config_.http.token.empty());
  if (!may_pass(status)) return error;
  wait_s_ = std::min(double(std::max(end.head.retry_after, 0LL)), kMostAskedWait);
  return lost_ = error.what, true;
}

// Attempts, until all bytes are here.
Status Download::transfer() {
  int failures = 0;
  for (uint64_t best = part_.size(); part_.size() < file_.size;) {
    const auto again = attempt();
    if (!again) return again.error();
    if (!*again) break;
    // What was fetched twice, as a server that does not resume has it, is no progress.
    failures = part_.size() > best ? 0 : failures + 1;
    best = std::max(best, part_.size());
    if (failures > config_.retries)
      return Error{
          repo_,
          fmt::format("{}: {} of {} came, then {}", file_.path, amount_of(part_.size()), amount_of(file_.size), lost_),
          "the same command goes on from there"};
    const double wait = std::max(wait_s_, failures == 0 ? kSoon : retry_wait(failures));
    config_.note(fmt::format("{}: {} at {} of {}; again in {:.1f} s", file_.path, lost_, amount_of(part_.size()),
                             amount_of(file_.size), wait));
    std::this_thread::sleep_for(std::chrono::duration<double>(wait));
  }
  return Ok{};
}

Status Download::run() {
  auto part = PartFile::open(path_);
  if (!part) return part.error();
  part_ = std::move(*part);
  if (auto ok = take_up(); !ok) return ok;
  if (auto ok = check_room(path_, file_.size - part_.size()); !ok) return ok;
  config_.note(part_.size() == 0
                   ? fmt::format("downloading {}/{}, {}, to {}", repo_, file_.path, amount_of(file_.size), path_)
                   : fmt::format("downloading {}/{}, {}, from {} on", repo_, file_.path, amount_of(file_.size),
                                 amount_of(part_.size())));
  for (bool second = false;; second = true) {
    if (auto ok = transfer(); !ok) {
      if (part_.size() == 0) part_.drop(), remove_file(path_ + ".part.etag");
      return ok;
    }
    const bool pieces = resumed_;
    const std::string found = sha_.hex();
    if (found == announced_hash(file_)) break;
    if (!pieces || second) {
      part_.drop();
      remove_file(path_ + ".part.etag");
      return Error{repo_,
                   fmt::format("{}: expected {} {}, found {}", file_.path,
                               file_.sha256.empty() ? "the Git hash" : "SHA-256", announced_hash(file_), found),
                   "it was damaged on its way or on the hub; it is removed here"};
    }
    if (auto ok = begin_again("its pieces do not make up the file that the hub announces"); !ok) return ok;
  }
  remove_file(path_ + ".sha256");  // of the one before it
  if (auto ok = part_.finish(); !ok) return ok;
  remove_file(path_ + ".part.etag");
  return Ok{};
}

}  // namespace facet
