// As FACET_MEDIA=OFF builds it: BMP, GIF and WAV are read, and of the others the message says what is missing.
#include <gtest/gtest.h>

#include "media/files.h"

namespace facet::test {
namespace {

TEST(MediaOff, SaysSoToWhoeverSendsOne) {
  for (const auto& [name, kind] :
       {std::pair{"kinds/rgb.jpg", "JPEG"}, {"kinds/rgb.png", "PNG"}, {"kinds/lossy.webp", "WebP"}}) {
    const std::string file = media_file(name);
    auto p = decode_resized(bytes_of(file), 280, "request");
    ASSERT_FALSE(p);
    EXPECT_EQ(p.error().message(),
              std::string("request: a ") + kind + "; this facet was built without " + kind +
                  " (FACET_MEDIA=OFF) (build it with -DFACET_MEDIA=ON, or save the picture as BMP)");
    EXPECT_FALSE(picture_info(bytes_of(file), "request"));
  }
  const std::string flac = media_file("tone.flac");
  auto s = decode_sound(bytes_of(flac), "request");
  ASSERT_FALSE(s);
  EXPECT_EQ(s.error().message(),
            "request: a FLAC; this facet was built without FLAC (FACET_MEDIA=OFF) (build it with -DFACET_MEDIA=ON, or "
            "save the sound as WAV)");
}

TEST(MediaOff, ReadsWhatTakesNoLibrary) {
  EXPECT_EQ(must_decode("kinds/rgb.bmp").width, 27);
  EXPECT_EQ(must_decode("kinds/plain.gif").width, 41);
  const std::string wav = media_file("official/mono16k.wav");
  EXPECT_TRUE(decode_sound(bytes_of(wav), "request"));
}

}  // namespace
}  // namespace facet::test
