#pragma once
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/hash.h"
#include "base/result.h"
#include "media/picture.h"

namespace facet {

// A picture or a sound in a prompt: its n soft tokens from position `begin` on. In Request::prompt they are ids below 0
// (append_soft_ids), so that two prompts begin alike only as far as their pictures are the same.
struct MediaSpan {
  int begin = 0, n = 0;
  bool is_picture = true;
  std::shared_ptr<const std::vector<float>> rows = {};  // [n, width of the model]
  int end() const { return begin + n; }
};

// Ids for the n soft tokens of what has this hash: below 0, each with 31 bits that depend on all of the hash and on its
// place.
void append_soft_ids(const Hash128::Digest& hash, int n, std::vector<int32_t>& to);
inline bool is_soft_id(int32_t id) { return id < 0; }
// The largest m <= n at which a prompt may be gone on from: not within soft tokens, but at the token that opens them, with
// which their step begins. Runs of fewer than four of them hold too few bits of the hash, and are not relied on.
int soft_token_border(std::span<const int32_t> tokens, int n);

// The encoders of an mmproj file: pictures and sounds to soft tokens in host memory, beside whatever the engine does.
// Any thread; one picture or sound at a time.
class MediaEncoder {
 public:
  virtual ~MediaEncoder() = default;
  virtual bool sees() const = 0;   // pictures
  virtual bool hears() const = 0;  // sound
  virtual int budget() const = 0;  // most soft tokens of a picture, one of kImageTokenBudgets
  virtual int width() const = 0;   // floats of a soft token
  // Whether sound goes in as mel frames (conformer) or as samples (12B): kLeastMelSamples, or 1.
  virtual int64_t least_samples() const = 0;
  virtual int sound_tokens(int64_t samples) const = 0;  // of one piece
  virtual const std::string& projector() const = 0;     // tells apart files, for picture_hash() and sound_hash()
  // Of a picture at its target size: [soft tokens, width of the model], row by row of its cells.
  virtual Result<std::vector<float>> encode(const Picture& picture) = 0;
  // Of one piece of at most kPieceSamples samples at 16 kHz: [soft tokens, width of the model].
  virtual Result<std::vector<float>> encode(std::span<const float> samples) = 0;
};

// What stands for one picture or one piece of a sound in a prompt.
struct MediaItem {
  bool is_picture = true;
  Hash128::Digest hash = {};  // of what was encoded: pixels or samples, budget, projector
  int n = 0;                  // soft tokens
  std::shared_ptr<const std::vector<float>> rows = {};
};

// Encoded pictures and sounds by what was encoded, the least recently used one goes first, and what the files were that
// came, so that one that comes again is not decoded. Any thread.
class MediaCache {
 public:
  using Rows = std::shared_ptr<const std::vector<float>>;
  explicit MediaCache(int64_t max_bytes) : max_bytes_(max_bytes) {}
  Rows find(const Hash128::Digest& hash);  // null: not there
  void put(const Hash128::Digest& hash, Rows rows);
  // Of a file (media_file_hash), with the rows of all its pieces; none: one of them is not there.
  std::optional<std::vector<MediaItem>> find_file(const Hash128::Digest& file);
  void put_file(const Hash128::Digest& file, const std::vector<MediaItem>& items);
  struct Stats {
    int64_t bytes = 0, hits = 0, misses = 0;  // of pictures and pieces of sound
    double encode_s = 0;                      // spent by the encoder, for the misses
  };
  void encoded(double seconds);
  Stats stats() const;

 private:
  static constexpr size_t kMostFiles = 4096;
  struct Entry {
    Hash128::Digest hash;
    Rows rows;
  };
  Rows find_locked(const Hash128::Digest& hash);
  const int64_t max_bytes_;
  mutable std::mutex mutex_;
  std::list<Entry> entries_;  // the most recently used first
  std::map<Hash128::Digest, std::list<Entry>::iterator> by_hash_;
  std::map<Hash128::Digest, std::vector<MediaItem>> files_;  // items without rows
  std::list<Hash128::Digest> file_order_;                    // the newest first
  Stats stats_;
};

// Ids of a vocabulary, -1 where it has none: <|image>, <|image|>, <image|>, and the same of audio.
struct MediaTokens {
  int32_t image_begin = -1, image = -1, image_end = -1, audio_begin = -1, audio = -1, audio_end = -1;
};
// Puts begin, soft ids and end of items[i] before prompt[at[i]], or at its end; at ascends, and several may stand at one
// place. Errors: a vocabulary without those tokens.
Status insert_media(const MediaTokens& ids, std::span<const MediaItem> items, std::span<const size_t> at,
                    std::vector<int32_t>& prompt, std::vector<MediaSpan>& spans);
// Likewise in the place of each placeholder, in order. Errors: more or fewer placeholders of a kind than items.
Status expand_media(const MediaTokens& ids, std::span<const MediaItem> items, std::vector<int32_t>& prompt,
                    std::vector<MediaSpan>& spans);

}  // namespace facet
