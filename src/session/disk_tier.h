#pragma once
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/files.h"
#include "base/worker.h"
#include "session/host_tier.h"

namespace facet {

// A file that is being read, or was.
struct DiskRead {
  std::atomic<bool> done = false;
  ImagePtr image = {};  // when it is done; null: the file was damaged, or gone
  double seconds = 0;
};

// Sessions in files of a folder, one each, up to a number of bytes; what was used least recently goes. One process at a
// time has the folder. A thread writes and another reads: whoever asks never waits for the disk.
//
// At the beginning headers alone are read. Files of other models and options stay until there is no room for them;
// what is damaged is deleted, with a line that says so; files that are not ours are left alone, whatever their name.
// Where nothing can be written, as on a full disk, the tier pauses, and a line says why; it looks for room when there
// is something to write, and goes on when it is there.
class DiskTier {
 public:
  struct Config {
    std::string folder = {};
    int64_t most = 0;          // bytes of files
    int64_t most_waiting = 0;  // bytes of images that wait to be written; more are dropped
    SessionHeader::Fingerprint whose = {};
    std::function<void(const std::string&)> on_note = {};  // any thread
  };
  // Null: another process has the folder.
  static Result<std::unique_ptr<DiskTier>> open(Config c);
  ~DiskTier();  // when everything is written

  // Writes an image, unless one of the same tokens is there. wait: until the ones before are written, instead of
  // dropping it when too many wait.
  void put(const ImagePtr& image, bool wait = false);

  struct Found {
    std::string name = {};  // of the file; empty: none of more than `least` tokens
    int len = 0;            // tokens that it saves
    int64_t bytes = 0;
  };
  // As HostTier::find.
  Found find(std::span<const int32_t> tokens, const std::string& salt, int least, const Reaches& reaches);
  std::shared_ptr<DiskRead> read(const std::string& name);
  void finish_reads();  // waits for all that were asked for
  void finish_writes();
  void look_for(Nearest& nearest, std::span<const int32_t> tokens, const std::string& salt) const;

  struct Counts {
    int64_t bytes = 0, entries = 0, evictions = 0, errors = 0, dropped = 0;
    bool paused = false;  // nothing is written, because it could not be
  };
  Counts counts() const;
  // While nothing is written: looks whether there is room, on the writing thread. Any thread, as often as it likes.
  void look_for_room();
  int64_t most() const { return c_.most; }

 private:
  static constexpr std::chrono::milliseconds kFirstWait{250}, kMostWait{60'000};
  struct Entry {
    std::string name = {};
    int64_t bytes = 0;
    bool ours = false;  // of this model and these options; else it only takes room
    std::string salt = {};
    std::vector<int32_t> tokens = {};
    std::vector<KvState> states = {};
  };
  explicit DiskTier(Config c) : c_(std::move(c)) {}
  std::string path(const std::string& name) const { return c_.folder + "/" + name; }
  std::string name_of(const SessionImage& image) const;
  void note(const std::string& text);
  void index();
  void index(const std::string& name, std::vector<std::pair<int64_t, Entry>>& found);
  void write(const ImagePtr& image, int64_t bytes);
  void drop_oldest(int64_t bytes);  // until so many fit; with the lock
  bool holds(const std::string& name) const;
  bool may_write() const;                                               // with the lock
  Result<int64_t> try_write(const SessionImage& image, int64_t bytes);  // bytes: of the file
  bool has_room(int64_t bytes);                                         // on the writing thread
  std::string pause(const Error& e, int64_t bytes);                     // with the lock; what there is to say
  // Gives a file the time of its use, later than every other's: the order of use outlives the process, and clocks of
  // files tick too slowly for it. With the lock.
  void mark_used(const std::string& name);
  void forget(const std::string& name);

  Config c_;
  FolderLock lock_;
  mutable std::mutex mutex_;
  std::list<Entry> entries_;  // most recently used first
  std::vector<std::string> queued_;
  int64_t bytes_ = 0, waiting_ = 0;
  int64_t last_used_ = 0;  // ns, the newest file's time
  Counts counts_;
  // While paused: nothing is tried before then, and how long the next failure makes that.
  std::chrono::steady_clock::time_point retry_at_ = {};
  std::chrono::milliseconds wait_ = kFirstWait;
  int64_t wanted_ = 0;  // bytes of the file that was not written
  bool paused_ = false;
  Worker reader_, writer_;  // last: they use the others
};

}  // namespace facet
