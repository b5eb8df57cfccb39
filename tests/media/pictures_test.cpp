// Decoded and resized bytes against Pillow's and against those that the official processor was fed with.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <set>

#include "media/files.h"
#include "media/patches.h"
#include "media/resize.h"

namespace facet::test {
namespace {

TEST(Pictures, EveryKindHasPillowsBytes) {
  const auto want = nlohmann::json::parse(media_file("kinds/pillow.json"));
  ASSERT_GE(want.size(), 60u);
  for (const auto& [name, w] : want.items()) {
    SCOPED_TRACE(name);
    const Picture whole = must_decode("kinds/" + name);
    EXPECT_EQ(whole.width, w[0].get<int>());
    EXPECT_EQ(whole.height, w[1].get<int>());
    EXPECT_EQ(sha256(whole), w[2].get<std::string>());
    const auto size = target_size(whole.width, whole.height, 70, name);
    ASSERT_TRUE(size);
    EXPECT_EQ(size->width, w[3].get<int>());
    EXPECT_EQ(size->height, w[4].get<int>());
    EXPECT_EQ(size->soft_tokens, w[5].get<int>());
    // Three ways to the same bytes.
    EXPECT_EQ(sha256(resize_bicubic(whole, size->width, size->height)), w[6].get<std::string>());
    EXPECT_EQ(sha256(must_resize("kinds/" + name, 70)), w[6].get<std::string>());
    EXPECT_EQ(sha256(must_resize("kinds/" + name, 70, 3)), w[6].get<std::string>());
    const std::string file = media_file("kinds/" + name);
    const auto info = picture_info(bytes_of(file), name);
    ASSERT_TRUE(info);
    EXPECT_EQ(info->width, whole.width);
    EXPECT_EQ(info->height, whole.height);
  }
}

TEST(Pictures, OfficialOnesAreEqual) {
  for (const auto& row : media_table("official/pictures.tsv")) {
    SCOPED_TRACE(row[0] + " " + row[1]);
    const Picture whole = must_decode("official/" + row[0]),
                  small = must_resize("official/" + row[0], std::stoi(row[1]));
    EXPECT_EQ(sha256(whole), row[2]);
    EXPECT_EQ(small.width, std::stoi(row[3]));
    EXPECT_EQ(small.height, std::stoi(row[4]));
    EXPECT_EQ(make_patches(small, kUnifiedPatch).count(), std::stoi(row[5]));
    EXPECT_EQ(sha256(small), row[6]);
  }
}

TEST(Pictures, SoftTokensOf40SizesAreTheOfficialOnes) {
  const auto rows = media_table("official/image_tokens.tsv");
  ASSERT_EQ(rows.size(), 200u);
  for (const auto& r : rows) {
    const auto size = target_size(std::stoi(r[0]), std::stoi(r[1]), std::stoi(r[2]), "size");
    ASSERT_TRUE(size) << r[0] << " x " << r[1] << ": " << size.error().message();
    EXPECT_EQ(size->width, std::stoi(r[3])) << r[0] << " x " << r[1];
    EXPECT_EQ(size->height, std::stoi(r[4])) << r[0] << " x " << r[1];
    EXPECT_EQ(size->soft_tokens, std::stoi(r[5])) << r[0] << " x " << r[1];
    EXPECT_EQ(size->soft_tokens, (size->width / 48) * (size->height / 48));  // of the real grid, whatever the sides
  }
}

TEST(Pictures, BudgetsAreFilledAndNamesOfThemMapped) {
  // A square picture, however small, gets all that its budget allows, and a long one keeps its aspect ratio.
  EXPECT_EQ(target_size(32, 32, 280, "")->soft_tokens, 256);
  EXPECT_EQ(target_size(1920, 1080, 1120, "")->soft_tokens, 1100);
  const auto strip = target_size(900, 3, 560, "");
  EXPECT_EQ(strip->soft_tokens, 409);
  EXPECT_EQ(strip->height, 48);
  for (const int b : kImageTokenBudgets) {
    for (int w = 1; w <= 16384; w = w * 5 / 3 + 1) {
      for (int h = 1; h <= 16384; h = h * 7 / 4 + 1) {
        const auto size = target_size(w, h, b, "");
        ASSERT_TRUE(size) << w << " x " << h;
        EXPECT_LE(size->soft_tokens, b);
        EXPECT_GE(size->soft_tokens, 1);
      }
    }
  }
  EXPECT_EQ(image_token_budget(0), 70);
  EXPECT_EQ(image_token_budget(279), 140);
  EXPECT_EQ(image_token_budget(280), 280);
  EXPECT_EQ(image_token_budget(int64_t{1} << 40), 1120);
  const auto bad = target_size(10, 10, 256, "request");
  ASSERT_FALSE(bad);
  EXPECT_EQ(bad.error().message(),
            "request: image tokens; expected 70, 140, 280, 560 or 1120, found 256 (name one of these budgets)");
  EXPECT_FALSE(target_size(0, 10, 280, ""));
}

// The resize as its description has it, with errors that others have made.
struct Bugs {
  bool vertical_first = false, align_corners = false, weights_cut_off = false, no_antialias = false,
       no_rounding_between = false;
  double a = -0.5;
};

std::vector<double> axis(const std::vector<double>& in, int n_in, int n_out, int stride_in, const Bugs& bugs,
                         bool last) {
  std::vector<double> out(size_t(n_out) * in.size() / size_t(n_in));
  const double scale = bugs.align_corners && n_out > 1 ? double(n_in - 1) / (n_out - 1) : double(n_in) / n_out;
  const double stretch = bugs.no_antialias ? 1 : std::max(1.0, scale), support = 2 * stretch;
  const size_t lines = in.size() / size_t(n_in * stride_in);
  for (int i = 0; i < n_out; ++i) {
    const double center = bugs.align_corners ? i * scale + 0.5 : (i + 0.5) * scale;
    const int begin = std::max(0, int(center - support + 0.5)), end = std::min(n_in, int(center + support + 0.5));
    std::vector<double> w;
    double sum = 0;
    for (int j = begin; j < end; ++j) {
      const double x = std::abs((j - center + 0.5) * (1 / stretch)), a = bugs.a;
      w.push_back(x < 1 ? ((a + 2) * x - (a + 3)) * x * x + 1 : x < 2 ? (((x - 5) * x + 8) * x - 4) * a : 0);
      sum += w.back();
    }
    for (double& v : w)
      v = bugs.weights_cut_off ? std::floor(v / sum * 256) / 256 : std::round(v / sum * (1 << 22)) / (1 << 22);
    for (size_t line = 0; line < lines; ++line) {
      for (int k = 0; k < stride_in; ++k) {
        double v = 0;
        for (int j = begin; j < end; ++j)
          v += w[size_t(j - begin)] * in[(line * size_t(n_in) + size_t(j)) * size_t(stride_in) + size_t(k)];
        if (last || !bugs.no_rounding_between) v = std::clamp(std::floor(v + 0.5), 0.0, 255.0);
        out[(line * size_t(n_out) + size_t(i)) * size_t(stride_in) + size_t(k)] = v;
      }
    }
  }
  return out;
}

Picture described_resize(const Picture& p, int w, int h, const Bugs& bugs) {
  std::vector<double> v(p.rgb.begin(), p.rgb.end());
  if (bugs.vertical_first) {
    v = axis(v, p.height, h, p.width * 3, bugs, false);
    v = axis(v, p.width, w, 3, bugs, true);
  } else {
    v = axis(v, p.width, w, 3, bugs, false);
    v = axis(v, p.height, h, w * 3, bugs, true);
  }
  return {w, h, std::vector<uint8_t>(v.begin(), v.end())};
}

// tall.png at 70, whose golden bytes any of them would miss.
std::string tall(const Bugs& bugs) {
  return sha256(described_resize(must_decode("official/tall.png"), 192, 720, bugs));
}
const char* const kTall = "03439939e321bbc265ddc2f667d2586084929c80c45eb23ff72612f1d9403f8c";

TEST(Resize, IsWhatItsDescriptionSays) {
  EXPECT_EQ(tall({}), kTall);
  for (const auto& [w, h, to_w, to_h] : {std::array{1, 1, 48, 96},
                                         {97, 3, 48, 48},
                                         {3, 97, 96, 48},
                                         {50, 40, 50, 96},
                                         {131, 17, 48, 17},
                                         {5, 300, 5, 31}}) {
    const Picture p = noise(w, h);
    EXPECT_EQ(resize_bicubic(p, to_w, to_h).rgb, described_resize(p, to_w, to_h, {}).rgb) << w << " x " << h;
    EXPECT_EQ(resize_bicubic(p, to_w, to_h, 4).rgb, resize_bicubic(p, to_w, to_h).rgb);
  }
  const Picture same = noise(33, 21);
  EXPECT_EQ(resize_bicubic(same, 33, 21).rgb, same.rgb);
}
TEST(ResizePlantedBug, VerticalFirst) { EXPECT_NE(tall({.vertical_first = true}), kTall); }
TEST(ResizePlantedBug, AlignCorners) { EXPECT_NE(tall({.align_corners = true}), kTall); }
TEST(ResizePlantedBug, WeightsCutOffInsteadOfRounded) { EXPECT_NE(tall({.weights_cut_off = true}), kTall); }
TEST(ResizePlantedBug, NotAntialiased) { EXPECT_NE(tall({.no_antialias = true}), kTall); }
TEST(ResizePlantedBug, NotRoundedBetweenThePasses) { EXPECT_NE(tall({.no_rounding_between = true}), kTall); }
TEST(ResizePlantedBug, TorchsOtherCubic) { EXPECT_NE(tall({.a = -0.75}), kTall); }
TEST(ResizePlantedBug, SquareInsteadOfTheAspectRatio) {
  EXPECT_NE(sha256(resize_bicubic(must_decode("official/tall.png"), 384, 384)), kTall);
}
TEST(PicturePlantedBug, BlueFirst) {
  Picture p = must_decode("official/tall.png");
  for (size_t i = 0; i < p.rgb.size(); i += 3) std::swap(p.rgb[i], p.rgb[i + 2]);
  EXPECT_NE(sha256(resize_bicubic(p, 192, 720)), kTall);
}
TEST(PicturePlantedBug, OrientationIgnored) {
  // Eight files of one picture, each stored another way around.
  const auto want = nlohmann::json::parse(media_file("kinds/pillow.json"));
  std::set<std::string> seen;
  for (int o = 1; o <= 8; ++o) {
    const std::string name = "orientation-" + std::to_string(o) + ".jpg";
    std::string file = media_file("kinds/" + name);
    const auto info = picture_info(bytes_of(file), name);
    ASSERT_TRUE(info);
    EXPECT_EQ(info->orientation, o);
    seen.insert(want[name][2].get<std::string>());
    const size_t at = file.find("Exif");
    ASSERT_NE(at, std::string::npos);
    file[at] = 'X';  // nobody finds it any more
    auto ignored = decode_picture(bytes_of(file), name);
    ASSERT_TRUE(ignored);
    EXPECT_EQ(sha256(*ignored) == want[name][2].get<std::string>(), o == 1) << name;
  }
  EXPECT_EQ(seen.size(), 8u);
}

TEST(Resize, VectorsAndPlainLoopsHaveTheSameBits) {
  for (const auto& [in, out] : {std::array{16384, 48}, {300, 299}, {7, 1000}, {1, 3}, {4000, 912}, {2, 1}}) {
    const media::BicubicTaps taps(in, out, in % 3 == 1);
    Picture p = noise(in, 3, uint64_t(in));
    p.rgb.resize(p.rgb.size() + media::kRowPadding);
    std::vector<uint8_t> a(size_t(out) * 3), b(a.size());
    media::weigh_pixels(p.rgb.data(), taps, a.data());
    media::weigh_pixels_plain(p.rgb.data(), taps, b.data());
    EXPECT_EQ(a, b) << in << " to " << out;
    std::vector<const uint8_t*> rows;
    for (int i : {0, out / 2, out - 1}) {
      rows.clear();
      for (int j = 0; j < taps.count(i); ++j) rows.push_back(&p.rgb[size_t(j % 3) * 7]);
      const size_t n = std::min<size_t>(in * 3 - 1, 333);
      std::vector<uint8_t> c(n), d(n);
      media::weigh_rows(rows.data(), taps, i, c.data(), n);
      media::weigh_rows_plain(rows.data(), taps, i, d.data(), n);
      EXPECT_EQ(c, d) << in << " to " << out;
    }
  }
}

TEST(Patches, AreRowsOfPixelsInOrder) {
  const Picture p = noise(144, 96);
  for (const int size : {kTowerPatch, kUnifiedPatch}) {
    const Patches patches = make_patches(p, size);
    ASSERT_EQ(patches.count(), 144 / size * (96 / size));
    ASSERT_EQ(patches.values.size(), p.rgb.size());
    for (int i = 0; i < patches.count(); ++i) {
      const int x = patches.positions[size_t(2 * i)], y = patches.positions[size_t(2 * i + 1)];
      ASSERT_EQ(x, i % (144 / size));
      ASSERT_EQ(y, i / (144 / size));
      for (int k = 0; k < size * size * 3; ++k) {
        const int line = k / (size * 3), column = k / 3 % size, channel = k % 3;
        ASSERT_EQ(patches.values[size_t(i * size * size * 3 + k)],
                  p.rgb[size_t(((y * size + line) * 144 + x * size + column) * 3 + channel)]);
      }
    }
  }
  std::vector<float> unit(p.rgb.size());
  unit_values(p.rgb, unit);
  EXPECT_EQ(unit[5], float(p.rgb[5]) / 255.0f);
}

TEST(Patches, HashesTellApartWhatIsEncoded) {
  std::set<std::string> seen;
  Picture p = noise(96, 48);
  seen.insert(hex(picture_hash(p, 280, "a")));
  seen.insert(hex(picture_hash(p, 560, "a")));
  seen.insert(hex(picture_hash(p, 280, "b")));
  std::swap(p.width, p.height);  // the same bytes, another shape
  seen.insert(hex(picture_hash(p, 280, "a")));
  p.rgb[1000] ^= 1;
  seen.insert(hex(picture_hash(p, 280, "a")));
  const std::vector<float> s(p.rgb.begin(), p.rgb.begin() + 10);
  seen.insert(hex(sound_hash(s, "a")));
  EXPECT_EQ(seen.size(), 6u);
  EXPECT_EQ(picture_hash(p, 280, "a"), picture_hash(p, 280, "a"));
}

}  // namespace
}  // namespace facet::test
