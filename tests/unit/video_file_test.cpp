// Videos through ffmpeg: one that plays by a script, and the real one where it is installed.
#include "tools/video_file.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "media/picture.h"
#include "tokenizer/media_part.h"

namespace facet {
namespace {

namespace fs = std::filesystem;

std::string bytes_of_file(const fs::path& path) {
  std::ifstream f(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(f), {}};
}

// A folder with a program ffmpeg that is a script, the only one that PATH has beside those of the system.
class VideoFile : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(testing::TempDir()) / ("video_file_" + std::to_string(::getpid()));
    fs::create_directories(folder_ / "bin");
    path_ = std::getenv("PATH");
    write("a.mp4", "a video");
  }
  void TearDown() override {
    ::setenv("PATH", path_.c_str(), 1);
    fs::remove_all(folder_);
  }
  std::string write(const std::string& name, const std::string& text) {
    std::ofstream(folder_ / name, std::ios::binary) << text;
    return (folder_ / name).string();
  }
  // Run with $1: index or frames, and $dir.
  void ffmpeg(const std::string& script) {
    write("bin/ffmpeg", "#!/bin/sh\ndir='" + folder_.string() +
                            "'\ncase \"$*\" in *framecrc*) set -- index \"$@\";; *) set -- frames \"$@\";; esac\n" +
                            script);
    fs::permissions(folder_ / "bin/ffmpeg", fs::perms::owner_all);
    ::setenv("PATH", ((folder_ / "bin").string() + ":/usr/bin:/bin").c_str(), 1);
  }
  Result<Video> read(const ProgramLimits& limits = {}) { return read_video((folder_ / "a.mp4").string(), limits); }
  fs::path folder_;
  std::string path_;
};

std::string index_of(int n, int64_t step, const char* base) {
  std::ostringstream s;
  s << "#software: Lavf58\n#tb 0: " << base << "\n#media_type 0: video\n#dimensions 0: 64x64\n";
  for (int i = 0; i < n; ++i) s << "0, " << i * step << ", " << i * step << ", " << step << ", 100, 0x0\n";
  return s.str();
}

TEST(Video, FramesAreThoseOfTheOfficialProcessor) {
  // floor(i * total / 32): a video of 5 s at 24 pictures a second.
  std::vector<int64_t> want;
  for (int i = 0; i < 32; ++i) want.push_back(int64_t(i * 120 / 32.0));
  EXPECT_EQ(video_frames(120), want);
  EXPECT_EQ(video_frames(3), (std::vector<int64_t>{0, 1, 2}));
  EXPECT_EQ(video_frames(32).back(), 31);
  EXPECT_EQ(video_frames(33).back(), 31);
  EXPECT_EQ(frame_time(0), "00:00");
  EXPECT_EQ(frame_time(61), "01:01");
  EXPECT_EQ(frame_time(6000), "100:00");
}

TEST(Video, TimesAreThoseOfTheSource) {
  // Of the order they are shown in, which is not that of the file.
  const VideoTimes t = video_times("#tb 0: 1/10\n0, -2, 20, 1, 9, 0x0\n0, -1, 40, 1, 9, 0x0\n0, 0, 30, 1, 9, 0x0\n");
  EXPECT_TRUE(t.is_timed);
  EXPECT_EQ(t.seconds, (std::vector<double>{0, 1, 2}));
  for (const char* none : {"#tb 0: 1/10\n0, NOPTS, NOPTS, 1, 9, 0x0\n0, NOPTS, NOPTS, 1, 9, 0x0\n",
                           "#tb 0: 1/0\n0, 0, 0, 1, 9, 0x0\n0, 1, 1, 1, 9, 0x0\n", "0, 0, 0, 1\n0, 1, 1, 1\n"}) {
    const VideoTimes u = video_times(none);
    EXPECT_FALSE(u.is_timed) << none;
    EXPECT_EQ(u.seconds, (std::vector<double>{0, 1 / 24.0})) << none;
  }
  for (const char* empty : {"", "\n\n", "#tb 0: 1/10\n", "#tb 0:"}) EXPECT_TRUE(video_times(empty).seconds.empty());
}

TEST(Video, PicturesAreTakenApart) {
  const std::string png = bytes_of_file(std::string(FACET_SOURCE_DIR) + "/models/facet-nano-loss.png");
  const auto two = split_pngs(png + png, "a");
  ASSERT_TRUE(two);
  EXPECT_EQ(*two, (std::vector<std::string>{png, png}));
  for (const std::string& bad :
       {png + png.substr(0, png.size() - 1), png.substr(0, 20), png + "x", std::string("GIF89a")})
    EXPECT_FALSE(split_pngs(bad, "a"));
}

TEST_F(VideoFile, FramesComeWithTheirTimes) {
  const std::string png = bytes_of_file(std::string(FACET_SOURCE_DIR) + "/models/facet-nano-loss.png");
  write("png", png);
  write("index", index_of(96, 1, "1/24"));  // 4 s
  ffmpeg(
      "if [ $1 = index ]; then cat $dir/index; else "
      "for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32; do cat "
      "$dir/png; "
      "done; fi");
  const auto v = read();
  ASSERT_TRUE(v) << v.error().message();
  ASSERT_EQ(v->frames.size(), 32u);
  for (int i = 0; i < 32; ++i) {
    EXPECT_EQ(v->frames[size_t(i)].png, png);
    EXPECT_EQ(v->frames[size_t(i)].second, i * 3 / 24) << i;  // frame 3 i of the source
  }
}

// One before 5.1.
TEST_F(VideoFile, AnOldProgramIsAskedInItsWords) {
  write("png", bytes_of_file(std::string(FACET_SOURCE_DIR) + "/models/facet-nano-loss.png"));
  write("index", index_of(1, 1, "1/1"));
  ffmpeg(
      "case \"$*\" in index*) cat $dir/index;; *'-vsync passthrough'*) cat $dir/png;; "
      "*) echo \"Unrecognized option 'fps_mode'.\" >&2; exit 1;; esac");
  const auto v = read();
  ASSERT_TRUE(v) << v.error().message();
  EXPECT_EQ(v->frames.size(), 1u);
}

// 25 frames in 25 s, of which ffmpeg gives five less: those have the times of their places in the source.
TEST_F(VideoFile, WhatIsMissingAtTheEndIsLeftOut) {
  write("png", bytes_of_file(std::string(FACET_SOURCE_DIR) + "/models/facet-nano-loss.png"));
  write("index", index_of(25, 512, "1/512"));
  ffmpeg(
      "if [ $1 = index ]; then cat $dir/index; else for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do "
      "cat $dir/png; done; fi");
  const auto v = read();
  ASSERT_TRUE(v) << v.error().message();
  ASSERT_EQ(v->frames.size(), 20u);
  EXPECT_EQ(v->frames[19].second, 19);
}

TEST_F(VideoFile, FaultsAreOneError) {
  const std::string png = bytes_of_file(std::string(FACET_SOURCE_DIR) + "/models/facet-nano-loss.png");
  write("png", png), write("index", index_of(4, 1, "1/1"));
  const std::pair<const char*, const char*> kFaults[] = {
      {"echo 'first line' >&2; echo 'moov atom not found' >&2; exit 1", "moov atom not found (exit code 1)"},
      {"exit 0", "expected a video that ffmpeg reads"},
      {"kill -SEGV $$", "killed by signal 11"},
      {"sleep 1000", "within 0.5 s"},
      {"yes", "bytes of output"},
      {"[ $1 = index ] && cat $dir/index", "expected a video that ffmpeg reads"},
      {"[ $1 = index ] && cat $dir/index || sleep 1000", "within 0.5 s"},
      {"[ $1 = index ] && cat $dir/index || yes", "bytes of output"},
      {"[ $1 = index ] && cat $dir/index || head -c 5000 $dir/png", "cut off"},
      {"[ $1 = index ] && cat $dir/index || cat $dir/png $dir/png $dir/png $dir/png $dir/png", "expected 4 pictures"},
      {"[ $1 = index ] && cat $dir/index || { cat $dir/png; echo broken >&2; exit 2; }", "broken (exit code 2)"}};
  for (const auto& [script, what] : kFaults) {
    ffmpeg(script);
    const auto begin = std::chrono::steady_clock::now();
    const auto v = read({.seconds = 0.5, .output = 10'000'000});
    ASSERT_FALSE(v) << script;
    EXPECT_NE(v.error().message().find(what), std::string::npos) << script << ": " << v.error().message();
    EXPECT_EQ(v.error().message().find('\n'), std::string::npos) << v.error().message();
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10)) << script;
  }
}

TEST_F(VideoFile, WithoutTheProgramItSaysSo) {
  ::setenv("PATH", (folder_.string() + "/none:relative:").c_str(), 1);
  const auto v = read();
  ASSERT_FALSE(v);
  EXPECT_NE(v.error().message().find("expected the program ffmpeg"), std::string::npos) << v.error().message();
  ffmpeg("exit 1");
  const auto none = read_video((folder_ / "b.mp4").string());
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().message().find("ffmpeg"), std::string::npos) << none.error().message();
}

// Each picture is as bright as its number says: those that are wanted come, each once, whatever the rate.
TEST_F(VideoFile, TheRealProgramGivesTheFramesOfTheSource) {
  const std::string program = find_program("ffmpeg");
  if (program.empty()) GTEST_SKIP() << "there is no ffmpeg in PATH";
  for (const char* rate : {"10", "30000/1001", "1/2"}) {
    const std::string file = (folder_ / "real.mkv").string();
    const std::string make = program + " -v error -y -f lavfi -i \"nullsrc=s=64x48:r=" + rate +
                             ",format=yuv420p,geq=lum='16+2*N':cb=128:cr=128\" -frames:v 100 -c:v ffv1 " + file;
    if (std::system(make.c_str()) != 0) GTEST_SKIP() << "this ffmpeg cannot make a video";
    const auto v = read_video(file);
    ASSERT_TRUE(v) << v.error().message();
    ASSERT_EQ(v->frames.size(), 32u) << rate;
    for (int i = 0; i < 32; ++i) {
      const VideoFrame& f = v->frames[size_t(i)];
      const auto picture = decode_picture(std::as_bytes(std::span(f.png)), "frame");
      ASSERT_TRUE(picture) << picture.error().message();
      const int n = i * 100 / 32;
      EXPECT_NEAR(picture->rgb[0], 2 * n * 255 / 219.0, 2) << rate << " " << i;
      const double fps = rate[0] == '3' ? 30000.0 / 1001 : rate[1] == '0' ? 10 : 0.5;
      EXPECT_EQ(f.second, int64_t(n / fps + 1e-6)) << rate << " " << i;
    }
  }
}

}  // namespace
}  // namespace facet
