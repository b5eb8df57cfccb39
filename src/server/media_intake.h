#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "api/engine.h"
#include "api/media_load.h"
#include "base/room.h"
#include "server/chat_prompt.h"
#include "server/openai.h"
#include "server/turn_pool.h"
#include "tokenizer/tokenizer.h"

// Pictures and sounds of a request on their way to soft tokens, and where they stand in its prompts.
namespace facet {

MediaTokens media_tokens(const Tokenizer& t);

// A prompt's text as ids, and what stands between them.
struct PromptIds {
  std::vector<int32_t> ids = {};
  std::vector<const std::string*> media = {};  // ContentPart::bytes, which tells parts apart
  std::vector<size_t> at = {};                 // media[i] stands before ids[at[i]], or at the end
};
// parts: of a prompt; <bos> comes before a text that begins it.
PromptIds prompt_ids(const std::vector<PromptPart>& parts, const Tokenizer& t);
// parse_special: control tokens that messages spell are those tokens.
PromptIds prompt_ids(const ChatPrompt& prompt, bool parse_special, const Tokenizer& t);

// Without soft tokens.
std::string text_of_prompt(std::span<const int32_t> ids, const Tokenizer& t, bool show_special);

// Of one request. Where it stands is told by `stage`: whoever has the request does what the stage says, then goes on.
class MediaOfRequest {
 public:
  enum class Stage { kNone, kFetch, kOpen, kEncode, kDone };
  Stage stage = Stage::kNone;

  using Fetch = std::function<Result<std::string>(const std::string& url)>;
  // All parts that the request may take, the first time. Pictures are opened at once.
  void collect(ApiRequest& r, MediaEncoder& encoder, MediaCache& cache);
  void advance();  // to kFetch or kOpen where there is something of the kind to do, else kNone
  bool empty() const { return loads_.empty(); }
  // Steps for a pool: of kFetch, kOpen or kEncode. They look at this object, the encoder, the cache and `fetch`.
  std::vector<std::function<void()>> steps(MediaEncoder& encoder, MediaCache& cache, const Fetch& fetch);
  // Parts that could not be opened or encoded get their error.
  void mark_errors(ApiRequest& r) const;
  int tokens(const PromptIds& p) const;  // with soft tokens and those around them
  int64_t row_bytes(std::span<const PromptIds> prompts, int width) const;
  // Marks the oldest parts that may be left out until `tokens` and `bytes` fewer are left. False: there are none.
  bool leave_out(ApiRequest& r, int64_t tokens, int64_t bytes, int width);
  void keep(std::span<const PromptIds> prompts);  // nothing but what stands in these is encoded
  // After kEncode. room: lives as long as the rows.
  Status insert(const MediaTokens& ids, const std::shared_ptr<Room::Part>& room, PromptIds& p,
                std::vector<MediaSpan>& spans) const;
  MediaUse use(const PromptIds& p) const;

 private:
  struct Load {
    std::shared_ptr<const std::string> bytes;  // ContentPart::bytes
    ContentPart part;
    std::string fetched = {};
    std::unique_ptr<MediaLoad> load = {};  // null: not fetched
    std::optional<Error> error = {};
    bool is_needed = true;
    void begin(MediaEncoder& encoder, MediaCache& cache);
  };
  const Load* find(const std::string* bytes) const;
  std::vector<std::unique_ptr<Load>> loads_;  // the oldest first
  bool is_collected_ = false;
};

std::string media_metrics(const MediaCache::Stats& s);  // Prometheus' text format

}  // namespace facet
