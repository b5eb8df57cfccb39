#pragma once
#include <functional>
#include <string>
#include <vector>

#include "app/media_options.h"
#include "base/result.h"
#include "tokenizer/chat.h"

namespace facet {

// The text of a file for /read: at most 1 MiB of UTF-8 without control characters.
Result<std::string> read_text_file(const std::string& path);

// A conversation as JSON: {"messages": [{"role": ..., "content": ...}]}. A picture, video or sound is a
// part {"type": "image", "path": ...}, its path being what ContentPart::bytes has here.
Status save_conversation(const std::string& path, const std::vector<Message>& messages);
// The parts of a picture, a video or a sound.
using Attach = std::function<Result<std::vector<ContentPart>>(const std::string& path, MediaKind kind)>;
// All of the file or an error.
Result<std::vector<Message>> load_conversation(const std::string& path, const Attach& attach);

}  // namespace facet
