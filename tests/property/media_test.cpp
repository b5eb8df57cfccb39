// Requests with pictures and sound: what an answer is does not depend on drafts, neighbours, chunks, or on where the
// conversation's rows were kept; and no picture is taken for another.
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <random>
#include <thread>

#include "api/engine.h"
#include "support/answers.h"
#include "support/harness.h"
#include "support/must.h"
#include "support/tiny_model.h"

namespace facet::test {
namespace {

constexpr int kWidth = 32;

// Rows as an encoder might make them, and the hash of what was encoded.
MediaItem item(unsigned seed, int n, bool is_picture = true) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal;
  std::vector<float> rows(size_t(n) * kWidth);
  for (float& x : rows) x = normal(rng);
  MediaItem m{.is_picture = is_picture, .n = n, .rows = std::make_shared<const std::vector<float>>(rows)};
  for (uint8_t& b : m.hash) b = uint8_t(rng());
  return m;
}

constexpr MediaTokens kIds{
    .image_begin = 90, .image = 91, .image_end = 92, .audio_begin = 93, .audio = 94, .audio_end = 95};

// Text, then each item between more text.
Request request(int seed, std::span<const MediaItem> items, int n_out = 24) {
  Request r{.max_tokens = n_out, .sampling = {.temperature = 0}};
  r.prompt = random_ids(7 + seed, 80, unsigned(seed));
  for (const MediaItem& m : items) {
    r.prompt.push_back(m.is_picture ? kIds.image : kIds.audio);
    const auto more = random_ids(5, 80, unsigned(seed + m.n));
    r.prompt.insert(r.prompt.end(), more.begin(), more.end());
  }
  must(expand_media(kIds, items, r.prompt, r.media));
  return r;
}

EngineConfig config(const TinyFile& f) {
  EngineConfig c;
  c.model = f.path();
  c.mmproj = data_path("media/large/mmproj-BF16.gguf");
  c.image_tokens = 70;
  c.n_ctx = 512;
  c.max_seq = 3;
  c.chunk = 80;
  c.margin = 16;
  c.n_threads = 1;
  c.cache_ram = 0;
  return c;
}
Answer run(Engine& e, Request r) {
  const Answer a = answer_of(e, std::move(r));
  EXPECT_EQ(a.error, "");
  return a;
}
Answer solo(const EngineConfig& c, Request r) { return run(*must(Engine::open(c)), std::move(r)); }

// Models whose pictures look ahead, and those that are causal.
class MediaRequests : public testing::TestWithParam<bool> {
 protected:
  TinyFile file_{TinyModel{.ple = GetParam(), .width = kWidth}};
  std::vector<MediaItem> items_{item(1, 40), item(2, 9, false), item(3, 70), item(4, 4)};
};
INSTANTIATE_TEST_SUITE_P(Models, MediaRequests, testing::Bool(),
                         [](const auto& p) { return p.param ? "Causal" : "Ahead"; });

TEST_P(MediaRequests, DraftsChunksAndNeighboursChangeNoToken) {
  const EngineConfig c = config(file_);
  std::vector<Request> requests;
  for (int i = 0; i < 6; ++i) requests.push_back(request(i, std::span(items_).first(size_t(i % 5))));
  std::vector<Answer> want;
  for (const Request& r : requests) want.push_back(solo(c, r));
  for (const int chunk : {75, 80, 200})
    for (const bool drafts : {false, true}) {
      EngineConfig other = c;
      other.chunk = chunk;
      other.draft.suffix = drafts;
      auto e = must(Engine::open(other));
      std::vector<Answer> got(requests.size());
      for (size_t i = 0; i < requests.size(); ++i) must(e->submit(requests[i], into(got[i])));
      while (e->tick()) {
      }
      for (size_t i = 0; i < requests.size(); ++i) {
        EXPECT_EQ(got[i].error, "");
        EXPECT_EQ(got[i].tokens, want[i].tokens) << i << " in chunks of " << chunk << ", drafts " << drafts;
      }
    }
}

// Pictures that come together, beside answers that draft as much as they may: one step holds what it is given.
TEST_P(MediaRequests, SeveralPicturesBesideDraftsFitIntoAStep) {
  EngineConfig c = config(file_);
  c.max_seq = 6, c.max_stall = 0;
  const auto talk = [](int seed) {
    Request r{.max_tokens = 400, .sampling = {.temperature = 0}};
    for (int i = 0; i < 60; ++i) r.prompt.push_back(7 + (i + seed) % 6);  // what repeats is drafted
    return r;
  };
  std::vector<Request> requests;
  for (int i = 0; i < 4; ++i) requests.push_back(talk(i));
  for (int i = 0; i < 6; ++i) requests.push_back(request(40 + i, std::span(items_).subspan(2, 1), 8));
  std::vector<Answer> want;
  for (const Request& r : requests) want.push_back(solo(c, r));
  c.draft.suffix = true, c.draft.min = 12;
  auto e = must(Engine::open(c));
  std::vector<Answer> got(requests.size());
  for (size_t i = 0; i < requests.size(); ++i) {
    must(e->submit(requests[i], into(got[i])));
    if (i == 3)
      for (int k = 0; k < 40; ++k) e->tick();  // until they repeat themselves
  }
  while (e->tick()) {
  }
  int64_t drafted = 0;
  for (size_t i = 0; i < requests.size(); ++i) {
    EXPECT_EQ(got[i].error, "");
    EXPECT_EQ(got[i].tokens, want[i].tokens) << i;
    drafted += got[i].usage.drafted;
  }
  EXPECT_GT(drafted, 100);
}

// The second turn over a picture computes nothing of the first again; nor does one that comes from memory or disk.
TEST_P(MediaRequests, ALaterTurnGoesOnBehindThePicture) {
  const std::string folder =
      (std::filesystem::temp_directory_path() / ("facet-media-" + std::to_string(getpid()))).string();
  std::filesystem::create_directory(folder);
  for (const int tier : {0, 1, 2}) {
    EngineConfig c = config(file_);
    if (tier > 0) c.max_seq = 1, c.snapshots = 1, c.cache_ram = tier == 1 ? int64_t(64) << 20 : 1;
    if (tier == 2) c.cache_disk = folder;
    auto e = must(Engine::open(c));
    const Request first = request(3, std::span(items_).first(3));
    const Answer a = run(*e, first);
    if (tier > 0)
      for (int i = 0; i < 4; ++i) run(*e, request(20 + i, std::span(items_).subspan(3, 1)));
    const auto written = [&] {  // a file has its name when it is complete
      for (const auto& f : std::filesystem::directory_iterator(folder))
        if (f.path().extension() == ".facet-session") return true;
      return false;
    };
    for (int i = 0; tier == 2 && i < 2000 && !written(); ++i) {
      e->tick();
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    Request second = first;
    second.prompt.insert(second.prompt.end(), a.tokens.begin(), a.tokens.end());
    const auto more = random_ids(6, 80, 99);
    second.prompt.insert(second.prompt.end(), more.begin(), more.end());
    const Answer b = run(*e, second);
    EXPECT_EQ(b.tokens, solo(config(file_), second).tokens) << "tier " << tier;
    EXPECT_GE(b.usage.cached, int(first.prompt.size())) << "tier " << tier;
  }
  std::filesystem::remove_all(folder);
}

TEST_P(MediaRequests, TwoPicturesNeverMeet) {
  auto e = must(Engine::open(config(file_)));
  const MediaItem one[] = {item(7, 40)}, other[] = {item(8, 40)};
  const Answer a = run(*e, request(5, one)), b = run(*e, request(5, other));
  EXPECT_LE(b.usage.cached, request(5, other).media[0].begin);
  EXPECT_EQ(b.tokens, solo(config(file_), request(5, other)).tokens);
  // Planted: ids that say nothing of what was encoded, as the placeholder's own: the other picture's rows are served.
  Request same = request(5, other);
  same.prompt = request(5, one).prompt;
  EXPECT_GT(run(*e, same).usage.cached, same.media[0].end());
}

// A prompt that parts from another one within a picture goes on before it.
TEST_P(MediaRequests, APictureIsNotEnteredInTheMiddle) {
  auto e = must(Engine::open(config(file_)));
  Request r = request(5, std::span(items_).first(1));
  run(*e, r);
  r.prompt[size_t(r.media[0].begin + 20)] ^= 1;
  EXPECT_LT(run(*e, r).usage.cached, r.media[0].begin);
  // Few soft tokens hold few bits of the hash: they are computed again.
  const MediaItem tiny[] = {item(9, 3)};
  const Request t = request(6, tiny);
  run(*e, t);
  EXPECT_LT(run(*e, t).usage.cached, t.media[0].begin);
}

TEST_P(MediaRequests, WhatDoesNotFitIsRefused) {
  auto e = must(Engine::open(config(file_)));
  Answer a;
  const Request good = request(1, std::span(items_).first(1));
  Request r = good;
  r.media[0].n -= 1;
  EXPECT_FALSE(e->submit(r, into(a)));
  r = good, r.media.clear();
  EXPECT_FALSE(e->submit(r, into(a)));
  r = good, r.prompt[2] = -5;
  EXPECT_FALSE(e->submit(r, into(a)));
  r = good, r.echo_logprobs = true, r.logprobs = 0;
  EXPECT_FALSE(e->submit(r, into(a)));
  const MediaItem large[] = {item(9, 100)};
  EXPECT_EQ(bool(e->submit(request(1, large), into(a))), GetParam());  // a chunk holds 80
  EngineConfig without = config(file_);
  without.mmproj = "";
  EXPECT_FALSE(must(Engine::open(without))->submit(good, into(a)));
}

}  // namespace
}  // namespace facet::test
