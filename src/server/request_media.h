#pragma once
#include <cstddef>
#include <string>
#include <string_view>

#include "server/openai.h"

// Pictures, sounds and files of requests: those that the model cannot take are an error in the newest message of the
// user's, and elsewhere one line of text in their place.
namespace facet {

inline constexpr size_t kMaxMedia = 32;                          // pictures, videos and sounds of a request
inline constexpr size_t kMaxFrames = 128;                        // of all its videos
inline constexpr std::string_view kMediaMarker = "<__media__>";  // stands for one in a prompt of /completion

class Fields;
// For parsers of chats: refuses what the model does not take (ApiDefaults), then settles. last: where the newest message
// has one, if its parts do not know.
void leave_media_out(Fields& f, ApiRequest& r, const ApiDefaults& d, const std::string& last);
// Parts with an error: the error, if one is in the newest message of the user's or in a prompt that is no chat; lines of
// text in the place of all others, counted in r.left_out.
Status settle_media(ApiRequest& r);
// f(part, may_be_left_out) for each picture and sound without an error, the oldest first.
template <class F>
void for_each_media(ApiRequest& r, F&& f);

// Where in a request's messages or items the newest of the user's has one: messages[2].content[0].type.
std::string media_place(const Json& list, const char* key);
std::string media_line(const ContentPart& part);  // [picture left out: this model takes none]
// Parts as a message's content: one text if there is no picture or sound among them that may be taken.
Content content_of(std::vector<ContentPart> parts);
// A text of parts of which none is taken, whatever they are.
std::string text_without_media(const std::vector<ContentPart>& parts, Dropped& left_out);

// The index of the newest message of the user's that no answer follows; messages.size(): none.
size_t newest_of_user(const std::vector<Message>& messages);

template <class F>
void for_each_media(ApiRequest& r, F&& f) {
  const auto takes = [](const ContentPart& p) { return p.bytes && !p.error; };
  const size_t newest = newest_of_user(r.messages);
  for (size_t i = 0; i < r.messages.size(); ++i)
    if (auto* parts = std::get_if<std::vector<ContentPart>>(&r.messages[i].content))
      for (ContentPart& p : *parts)
        if (takes(p)) f(p, i != newest);
  const auto of_prompt = [&](std::vector<PromptPart>& prompt) {
    for (PromptPart& part : prompt)
      if (auto* p = std::get_if<ContentPart>(&part); p && takes(*p)) f(*p, false);
  };
  of_prompt(r.prompt);
  for (std::vector<PromptPart>& p : r.more_prompts) of_prompt(p);
}

}  // namespace facet
