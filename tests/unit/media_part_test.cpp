// Pictures and sounds as the dialects write them, and where their placeholders stand in a prompt.
#include "tokenizer/media_part.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/base64.h"

namespace facet {
namespace {

TEST(Base64, IsStrict) {
  const std::pair<const char*, const char*> kGood[] = {
      {"", ""}, {"Zg==", "f"}, {"Zm8=", "fo"}, {"Zm9v", "foo"}, {"Zm9v\r\nYg==\n", "foob"}, {"+/+/", "\xfb\xff\xbf"}};
  for (const auto& [text, bytes] : kGood) EXPECT_EQ(decode_base64(text), std::optional<std::string>(bytes)) << text;
  for (const char* text : {"Z", "Zg", "Zg=", "Zg===", "Zm8", "Zm9v=", "=", "====", "Zg==Zg==", "Z m9v", "Zm9-", "Zm9_",
                           "Zh==", "Zm9=", "Zg=A", "Zm9v\t"})
    EXPECT_EQ(decode_base64(text), std::nullopt) << text;
}

ContentPart part_of(const std::string& text) {
  auto j = parse_json(R"([{"role":"user","content":[)" + text + "]}]", "test");
  if (!j) return {};
  auto m = messages_from_json(*j);
  if (!m) return {};
  return std::get<std::vector<ContentPart>>((*m)[0].content)[0];
}

TEST(MediaPart, EveryShapeCarriesItsBytes) {
  using Kind = ContentPart::Kind;
  const std::pair<const char*, Kind> kShapes[] = {
      {R"({"type":"image_url","image_url":{"url":"data:image/png;base64,Zm9v"}})", Kind::kImage},
      {R"({"type":"image_url","image_url":"DATA:image/png;name=a;BASE64,Zm9v"})", Kind::kImage},
      {R"({"type":"image_url","image_url":{"url":"Zm9v"}})", Kind::kImage},
      {R"({"type":"image","image":"data:image/jpeg;base64,Zm9v"})", Kind::kImage},
      {R"({"type":"image","url":"data:image/jpeg;base64,Zm9v"})", Kind::kImage},
      {R"({"type":"input_audio","input_audio":{"data":"Zm9v","format":"wav"}})", Kind::kAudio},
      {R"({"type":"audio","audio":"data:audio/wav;base64,Zm9v"})", Kind::kAudio}};
  for (const auto& [text, kind] : kShapes) {
    const ContentPart p = part_of(text);
    EXPECT_EQ(p.kind, kind) << text;
    ASSERT_TRUE(p.bytes) << text;
    EXPECT_EQ(*p.bytes, "foo") << text;
    EXPECT_FALSE(p.error) << text;
  }
}

TEST(MediaPart, DetailIsABudget) {
  const auto budget = [](const std::string& detail, const std::string& beside = "") {
    const ContentPart p =
        part_of(R"({"type":"image_url","image_url":{"url":"data:;base64,Zm9v")" + detail + "}" + beside + "}");
    return p.error ? p.error->where : std::to_string(p.budget);
  };
  EXPECT_EQ(budget(""), "0");
  EXPECT_EQ(budget(R"(,"detail":"auto")"), "0");
  EXPECT_EQ(budget(R"(,"detail":"low")"), "70");
  EXPECT_EQ(budget(R"(,"detail":"high")"), "1120");
  EXPECT_EQ(budget(R"(,"detail":"low")", R"(,"max_soft_tokens":560)"), "560");
  EXPECT_EQ(budget(R"(,"detail":"best")"), "messages[0].content[0].image_url.detail");
  EXPECT_EQ(budget("", R"(,"max_soft_tokens":100)"), "messages[0].content[0].max_soft_tokens");
}

TEST(MediaPart, AVideosFramesAreOfTheOfficialBudgetAndHaveTheirTimes) {
  const ContentPart v = part_of(R"({"type":"video","fps":0.5,"frames":["data:image/png;base64,Zm9v",{"url":"Zm9v"}]})");
  EXPECT_EQ(v.kind, ContentPart::Kind::kVideo);
  ASSERT_TRUE(v.frames);
  ASSERT_EQ(v.frames->size(), 2u);
  const ContentPart& second = (*v.frames)[1];
  EXPECT_EQ((*v.frames)[0].before, "00:00 ");
  EXPECT_EQ(second.before, " 00:02 ");
  EXPECT_EQ(second.budget, 70);
  EXPECT_EQ(*second.bytes, "foo");
  EXPECT_EQ(second.where, "messages[0].content[0].frames[1]");
  EXPECT_EQ((*part_of(R"({"type":"video","fps":1,"max_soft_tokens":280,"frames":["Zm9v"]})").frames)[0].budget, 280);
}

// Index over rate, of rates that are no binary numbers: floor of what the quotient stands for.
TEST(MediaPart, AFrameOfAWholeSecondHasIt) {
  std::string frames;
  for (int i = 0; i < 32; ++i) frames += i > 0 ? R"(,"Zm9v")" : R"("Zm9v")";
  for (const char* fps : {"0.1", "0.3", "0.7", "1", "3", "10", "29.97", "30"}) {
    const ContentPart v = part_of(std::string(R"({"type":"video","fps":)") + fps + R"(,"frames":[)" + frames + "]}");
    ASSERT_TRUE(v.frames) << fps;
    for (int i = 0; i < 32; ++i) {
      const auto second = int64_t(i * 100 / std::lround(std::stod(fps) * 100));
      EXPECT_EQ((*v.frames)[size_t(i)].before, before_frame(size_t(i), second)) << fps << " " << i;
    }
  }
}

// Nothing is fetched, wherever it is: each is one error that names the part.
TEST(MediaPart, NoUrlIsFetched) {
  for (const char* url : {"http://127.0.0.1/a.png",
                          "http://localhost/",
                          "http://[::1]/",
                          "http://[::ffff:127.0.0.1]/",
                          "http://[::ffff:7f00:1]/",
                          "http://169.254.169.254/latest/meta-data",
                          "http://[fe80::1]/",
                          "http://10.0.0.1/",
                          "http://172.16.0.1/",
                          "http://192.168.0.1/",
                          "http://100.64.0.1/",
                          "http://0.0.0.0/",
                          "http://0/",
                          "http://2130706433/",
                          "http://0x7f.1/",
                          "http://017700000001/",
                          "http://[fd00::1]/",
                          "https://user:word@example.com/a.png",
                          "ftp://example.com/a.png",
                          "file:///etc/passwd",
                          "FILE:///etc/passwd",
                          "https://example.com/a.png",
                          "gopher://127.0.0.1:70/"}) {
    const ContentPart p = media_from_url(ContentPart::Kind::kImage, url, "messages[2].content[1]");
    ASSERT_TRUE(p.error) << url;
    EXPECT_EQ(p.error->where, "messages[2].content[1]") << url;
    EXPECT_NE(p.error->hint.find("fetches nothing"), std::string::npos) << url;
    EXPECT_FALSE(p.bytes) << url;
  }
  for (const char* url : {"", "data:", "data:image/png,%89PNG", "data:image/png;base64", "data:;base64,",
                          "data:,base64", "data:image/png;base64,Zg", "//example.com/a.png?"})
    EXPECT_TRUE(media_from_url(ContentPart::Kind::kImage, url, "x").error) << url;
}

TEST(MediaPart, PlaceholdersAreOfPartsAlone) {
  auto j = parse_json(R"([{"role":"user","content":[{"type":"text","text":"<|image|> \u00fd"},
      {"type":"image_url","image_url":"data:;base64,Zm9v"},{"type":"text","text":"<|audio|>"},
      {"type":"input_audio","input_audio":{"data":"YmFy"}},{"type":"image","image":"YmF6"}]},
    {"role":"assistant","tool_calls":[{"id":"c","function":{"name":"f"}}]},
    {"role":"tool","tool_call_id":"c","content":[{"type":"image","image":"cXV4"},{"type":"text","text":"<|image|>"}]}])",
                      "test");
  ASSERT_TRUE(bool(j));
  auto m = messages_from_json(*j);
  ASSERT_TRUE(bool(m)) << m.error().message();
  std::get<std::vector<ContentPart>>((*m)[0].content)[2].text += "\xFD";  // no UTF-8, and no mark of a placeholder
  auto r = render_chat_ranges(*m, {}, {.add_generation_prompt = true});
  ASSERT_TRUE(bool(r));
  std::string found;
  size_t end = 0;
  for (const auto& [place, part] : r->media) {
    EXPECT_GE(place.begin, end);
    end = place.end;
    found += r->text.substr(place.begin, place.end - place.begin) + "=" + *part.bytes + " ";
    for (const TextRange& p : r->plain) EXPECT_TRUE(p.end <= place.begin || p.begin >= place.end);
  }
  EXPECT_EQ(found, "<|image|>=foo <|audio|>=bar <|image|>=baz <|image|>=qux ");
  EXPECT_EQ(r->text.find('\xFD'), std::string::npos);
  EXPECT_EQ(r->text.find("<|image|> \xC3\xBD<|image|><|audio|>"), r->media[0].place.begin - 12);
}

}  // namespace
}  // namespace facet
