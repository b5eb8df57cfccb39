#pragma once
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/result.h"
#include "tokenizer/json.h"
#include "tokenizer/text_range.h"

// Conversations to prompt text, as Gemma 4's chat template of July 2026 renders them.
namespace facet {

struct ContentPart {
  enum class Kind { kText, kImage, kAudio, kVideo, kFile } kind = Kind::kText;
  std::string text{};                          // of kText
  std::shared_ptr<const std::string> bytes{};  // of the others: the file, still encoded
  int budget = 0;                              // of kImage: most soft tokens; 0: as the server is set
  std::string before{};                        // of kImage: text that comes before it, as the time of a video's frame
  std::shared_ptr<const std::vector<ContentPart>> frames{};  // of kVideo: pictures, each with its time before it
  std::string url{};                                         // where there are none: what names them
  std::string where{};                                       // its place in the request, for errors
  std::optional<Error> error{};                              // why it cannot be taken
  const char* reason = "it cannot be read";                  // the same, in a few words
  bool operator==(const ContentPart& o) const { return kind == o.kind && text == o.text && bytes == o.bytes; }
};
// Nothing (JSON null), a text, or parts.
using Content = std::variant<std::monostate, std::string, std::vector<ContentPart>>;

struct ToolCall {
  std::string id{}, name{};
  Json arguments{};  // an object, or null for none
};
struct ToolResponse {
  std::string name{};
  Json response{};  // any value; an object is written as fields
};
struct Message {
  std::string role{};  // system, developer, user, assistant or tool
  Content content{};
  std::string reasoning{};                     // of assistant
  std::vector<ToolCall> tool_calls{};          // of assistant
  std::vector<ToolResponse> tool_responses{};  // of assistant: results in place, instead of messages of role tool
  std::string tool_call_id{}, name{};          // of tool
};

// The templates of 31B, 26B and 12B open an empty thought when thinking is off; those of E4B and E2B do not.
enum class Variant { kLarge, kSmall };

struct RenderOptions {
  bool add_generation_prompt = false;
  bool enable_thinking = false;
  bool preserve_thinking = false;  // keep the thoughts of earlier messages that have tool calls
  Variant variant = Variant::kLarge;
};

// Which variant a model is: from its file's template, or, where that says nothing, from its architecture (the
// E models are those with per-layer embeddings).
Variant chat_variant(std::string_view chat_template, bool has_per_layer_embeddings);

// tools: function objects {name, description, parameters, response}, as tools_from_json returns them.
// The prompt begins with <bos>. Encode it with parse_special.
Result<std::string> render_chat(const std::vector<Message>& messages, const std::vector<Json>& tools,
                                const RenderOptions& options);

// The same, with the ranges of the prompt that messages and tools spell: encoded with them as `plain`, no text of a
// message can end its turn or begin a call.
// media: where the text has a placeholder that stands for a part, and which; in the order of the text. A placeholder
// that a message spells is none.
struct RenderedChat {
  struct Media {
    TextRange place{};
    ContentPart part{};
  };
  std::string text{};
  std::vector<TextRange> plain{};
  std::vector<Media> media{};
};
Result<RenderedChat> render_chat_ranges(const std::vector<Message>& messages, const std::vector<Json>& tools,
                                        const RenderOptions& options);

// Whether the model's text continues inside a thought that the prompt has opened (ParseOptions::in_thought).
inline bool ends_in_thought(std::string_view prompt) { return prompt.ends_with("<|channel>thought\n"); }

// OpenAI-style messages. Arguments of tool calls may be objects or, as OpenAI sends them, the text of one.
Result<std::vector<Message>> messages_from_json(const Json& messages);

// One of them, that stands at `where`, checked: its name is one that a call can have.
Result<Json> tool_from_json(const Json& tool, const std::string& where);
// [{type: "function", function: {...}}, ...] or bare function objects; null is no tools.
Result<std::vector<Json>> tools_from_json(const Json& tools);

// A number as Python prints it: 1.0, 0.1, 1e+20. The template was written for Python.
std::string python_number(double value);

}  // namespace facet
