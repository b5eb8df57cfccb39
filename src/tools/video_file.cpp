#include "tools/video_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <string_view>

#include "base/files.h"
#include "tokenizer/media_part.h"
#include "tokenizer/utf8.h"

namespace facet {
namespace {

constexpr double kAssumedRate = 24;  // pictures a second, as the official processor assumes where it is told none

template <class T>
std::optional<T> number(std::string_view text) {
  const size_t from = std::min(text.find_first_not_of(' '), text.size());
  T value{};
  const auto [end, error] = std::from_chars(text.data() + from, text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() ? std::optional<T>(value) : std::nullopt;
}

// ffmpeg with the options of both runs. The name is a file's, whatever it looks like; nothing else may be opened by it.
std::vector<std::string> ffmpeg(const std::string& program, const std::string& path,
                                std::initializer_list<const char*> options) {
  std::vector<std::string> args = {
      program,     "-nostdin", "-hide_banner", "-v",   "error", "-threads", "2", "-protocol_whitelist",
      "file,pipe", "-i",       "file:" + path, "-map", "0:V:0"};
  args.insert(args.end(), options.begin(), options.end());
  args.emplace_back("pipe:1");
  return args;
}

// What ffmpeg has said, on one line.
Error refused(const std::string& path, const ProgramOutput& output) {
  std::string said = output.err.substr(0, output.err.find('\n'));
  if (const size_t last = output.err.find_last_not_of('\n'); last != std::string::npos)
    if (const size_t begin = output.err.rfind('\n', last); begin != std::string::npos)
      said = output.err.substr(begin + 1, last - begin);
  return Error{
      path,
      fmt::format("expected a video that ffmpeg reads, found: {} ({})", cut(utf8_sanitize(said), 200), output.end),
      "try ffmpeg -i FILE by hand"};
}

}  // namespace

// "#tb 0: 1/12800", then "0, dts, pts, duration, size, crc" for each picture in the order of the file.
VideoTimes video_times(std::string_view framecrc) {
  std::vector<int64_t> at;
  size_t n = 0;
  double tick = 0;
  while (!framecrc.empty()) {
    const size_t end = std::min(framecrc.find('\n'), framecrc.size());
    const std::string_view line = framecrc.substr(0, end);
    framecrc.remove_prefix(std::min(end + 1, framecrc.size()));
    if (constexpr std::string_view kBase = "#tb 0:"; line.starts_with(kBase)) {
      const size_t slash = std::min(line.find('/'), line.size() - 1);
      const auto a = number<int64_t>(line.substr(kBase.size(), slash - kBase.size()));
      const auto b = number<int64_t>(line.substr(slash + 1));
      if (a && b && *a > 0 && *b > 0) tick = double(*a) / double(*b);
    }
    if (line.empty() || line[0] == '#') continue;
    ++n;
    std::string_view field[3];
    std::string_view rest = line;
    for (std::string_view& f : field) {
      const size_t comma = std::min(rest.find(','), rest.size());
      f = rest.substr(0, comma);
      rest.remove_prefix(std::min(comma + 1, rest.size()));
    }
    if (const auto pts = number<int64_t>(field[2])) at.push_back(*pts);
  }
  VideoTimes times;
  times.is_timed = tick > 0 && at.size() == n;
  std::sort(at.begin(), at.end());
  for (size_t i = 0; i < n; ++i)
    times.seconds.push_back(times.is_timed ? (double(at[i]) - double(at[0])) * tick : double(i) / kAssumedRate);
  return times;
}

Result<std::vector<std::string>> split_pngs(std::string_view bytes, const std::string& where) {
  constexpr std::string_view kMagic = "\x89PNG\r\n\x1a\n";
  constexpr size_t kAround = 12;  // length, type and CRC of a chunk
  std::vector<std::string> out;
  const Error cut_off{where, "expected pictures from ffmpeg, found one that is cut off", "try another ffmpeg"};
  while (!bytes.empty()) {
    if (!bytes.starts_with(kMagic)) return cut_off;
    size_t at = kMagic.size();
    for (bool last = false; !last;) {
      if (bytes.size() - at < kAround) return cut_off;
      uint64_t length = 0;
      for (size_t i = 0; i < 4; ++i) length = length << 8 | uint8_t(bytes[at + i]);
      if (bytes.size() - at - kAround < length) return cut_off;
      last = bytes.substr(at + 4, 4) == "IEND";
      at += kAround + length;
    }
    out.emplace_back(bytes.substr(0, at));
    bytes.remove_prefix(at);
  }
  return out;
}

Result<Video> read_video(const std::string& path, const ProgramLimits& limits, const std::function<bool()>& stop) {
  auto fd = open_regular(path);
  if (!fd) return fd.error();
  close_file(*fd);
  const std::string program = find_program("ffmpeg");
  if (program.empty())
    return Error{path, "expected the program ffmpeg, which reads videos, found none in PATH",
                 "install it, or give pictures of the video (--image)"};
  auto index = run_program(ffmpeg(program, path, {"-c", "copy", "-f", "framecrc"}), limits, stop);
  if (!index) return index.error();
  const VideoTimes times = video_times(index->out);
  if (!index->ok || times.seconds.empty()) return refused(path, *index);
  const std::vector<int64_t> wanted = video_frames(int64_t(times.seconds.size()));
  // Large pictures are shrunk before they are kept: a frame has at most 70 soft tokens of 48 x 48 pixels.
  std::string filter = "select='";
  for (const int64_t i : wanted) filter += fmt::format("{}eq(n\\,{})", i == wanted[0] ? "" : "+", i);
  filter +=
      "',scale='min(iw\\,1920)':'min(ih\\,1920)':force_original_aspect_ratio=decrease:"
      "flags=bicubic+accurate_rnd+full_chroma_int";
  // No picture is repeated or dropped to keep a rate: an option that had another name before version 5.1.
  const auto take = [&](const char* as_they_are) {
    return run_program(ffmpeg(program, path,
                              {"-vf", filter.c_str(), as_they_are, "passthrough", "-c:v", "png", "-compression_level",
                               "1", "-pix_fmt", "rgb24", "-f", "image2pipe"}),
                       limits, stop);
  };
  auto pictures = take("-fps_mode");
  if (pictures && !pictures->ok && pictures->err.find("'fps_mode'") != std::string::npos) pictures = take("-vsync");
  if (!pictures) return pictures.error();
  if (!pictures->ok || pictures->out.empty()) return refused(path, *pictures);
  auto pngs = split_pngs(pictures->out, path);
  if (!pngs) return pngs.error();
  if (pngs->size() > wanted.size())
    return Error{path, fmt::format("expected {} pictures from ffmpeg, found {}", wanted.size(), pngs->size()),
                 "try another ffmpeg"};
  Video video{.frames = {}, .is_timed = times.is_timed};
  // The last ones may be missing: pictures that cannot be decoded have a place in the file as well.
  constexpr double kRounding = 0.0005;  // s; some files have times in whole milliseconds
  for (size_t i = 0; i < pngs->size(); ++i)
    video.frames.push_back({std::move((*pngs)[i]), int64_t(times.seconds[size_t(wanted[i])] + kRounding)});
  return video;
}

}  // namespace facet
