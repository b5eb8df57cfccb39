#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/run_program.h"

namespace facet {

// A picture of a video: PNG, with the time it is shown at, in whole seconds from the first picture on.
struct VideoFrame {
  std::string png;
  int64_t second = 0;
};
struct Video {
  std::vector<VideoFrame> frames;  // those of video_frames()
  bool is_timed = true;            // false: the file has no times, and 24 pictures a second are assumed
};

// The frames of a file that stand for it, by the program ffmpeg, which reads it twice: what pictures there are and when,
// then those that are wanted. Errors: there is no ffmpeg (PATH), the file is no video, a bound is met.
Result<Video> read_video(const std::string& path, const ProgramLimits& limits = {},
                         const std::function<bool()>& stop = {});

// Within: the times of all pictures in the order they are shown, of `ffmpeg -f framecrc`; none: there are none.
struct VideoTimes {
  std::vector<double> seconds;
  bool is_timed = true;
};
VideoTimes video_times(std::string_view framecrc);
// The PNG files that stand one behind the other; an error if one is cut.
Result<std::vector<std::string>> split_pngs(std::string_view bytes, const std::string& where);

}  // namespace facet
