#pragma once
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
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
  // Whether sound goes in as mel frames (conformer) or as samples (12B): kLeastMelSamples, or 1.
  virtual int64_t least_samples() const = 0;
  virtual int sound_tokens(int64_t samples) const = 0;  // of one piece
  virtual const std::string& projector() const = 0;     // tells apart files, for picture_hash() and sound_hash()
  // Of a picture at its target size: [soft tokens, width of the model], row by row of its cells.
  virtual Result<std::vector<float>> encode(const Picture& picture) = 0;
  // Of one piece of at most kPieceSamples samples at 16 kHz: [soft tokens, width of the model].
  virtual Result<std::vector<float>> encode(std::span<const float> samples) = 0;
};

// Encoded pictures and sounds by what was encoded, the least recently used one goes first. Any thread.
class MediaCache {
 public:
  using Rows = std::shared_ptr<const std::vector<float>>;
  explicit MediaCache(int64_t max_bytes) : max_bytes_(max_bytes) {}
  Rows find(const Hash128::Digest& hash);  // null: not there
  void put(const Hash128::Digest& hash, Rows rows);
  struct Stats {
    int64_t bytes = 0, hits = 0, misses = 0;
  };
  Stats stats() const;

 private:
  struct Entry {
    Hash128::Digest hash;
    Rows rows;
  };
  const int64_t max_bytes_;
  mutable std::mutex mutex_;
  std::list<Entry> entries_;  // the most recently used first
  std::map<Hash128::Digest, std::list<Entry>::iterator> by_hash_;
  Stats stats_;
};

// What stands for one picture or one piece of a sound in a prompt.
struct MediaItem {
  bool is_picture = true;
  Hash128::Digest hash = {};
  int n = 0;  // soft tokens
  MediaCache::Rows rows = {};
};
// A picture or a sound as it came, decoded and encoded, or found in the cache. where: for errors. Sound of more than 30 s
// is several pieces.
Result<MediaItem> encode_picture(MediaEncoder& encoder, MediaCache& cache, std::span<const std::byte> bytes,
                                 const std::string& where, int budget = 0);
Result<std::vector<MediaItem>> encode_sound(MediaEncoder& encoder, MediaCache& cache, std::span<const std::byte> bytes,
                                            const std::string& where);

// Ids of a vocabulary, -1 where it has none: <|image>, <|image|>, <image|>, and the same of audio.
struct MediaTokens {
  int32_t image_begin = -1, image = -1, image_end = -1, audio_begin = -1, audio = -1, audio_end = -1;
};
// Puts begin, soft ids and end in the place of each placeholder, in order. Errors: more or fewer placeholders of a kind
// than items, a vocabulary without them.
Status expand_media(const MediaTokens& ids, std::span<const MediaItem> items, std::vector<int32_t>& prompt,
                    std::vector<MediaSpan>& spans);

}  // namespace facet
