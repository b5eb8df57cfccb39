#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/chat.h"

// Pictures and sounds of messages, as the several dialects write them. What cannot be read is a part with an error: it
// depends on the message whether the conversation can go on without it.
namespace facet {

// A data: URL, or the bare base64 that llama-server takes in its place. Other URLs are an error, of a part that has it.
ContentPart media_from_url(ContentPart::Kind kind, std::string_view url, const std::string& where);
ContentPart media_from_base64(ContentPart::Kind kind, std::string_view data, const std::string& where);
// OpenAI's `detail` (low, high or auto) and `max_soft_tokens`, which wins, of the object that has them.
void read_detail(ContentPart& part, const Json& object, const std::string& where);
// {type: image_url, image_url: URL or {url, detail}}, {type: image, image: ..., url: ...},
// {type: input_audio, input_audio: {data, format}}, {type: audio, audio: ..., url: ...}
ContentPart media_from_json(ContentPart::Kind kind, const Json& part, const std::string& where);

// A video is pictures with times between them: "00:00 <picture> 00:02 <picture>". Those it is made of, of n there are:
// all, or kVideoFrames of them at equal steps, as the official processor takes them.
inline constexpr int kVideoFrames = 32, kFrameTokens = 70;  // most soft tokens of one
std::vector<int64_t> video_frames(int64_t n);
std::string frame_time(int64_t second);  // mm:ss
// What stands before frame i of a video.
inline std::string before_frame(size_t i, int64_t second) { return (i > 0 ? " " : "") + frame_time(second) + " "; }
// {type: video, frames: [URL or {url}, ...], fps: frames a second}
ContentPart video_from_json(const Json& part, const std::string& where);

}  // namespace facet
