#include "formats/session_file.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <chrono>
#include <csignal>
#include <cstring>
#include <random>
#include <thread>

#include "session/disk_tier.h"
#include "support/session_edit.h"

namespace facet::test {
namespace {

constexpr SessionHeader::Fingerprint kWhose = {1, 2, 3}, kOther = {9};

// An image of n tokens that begin with those of any longer one of the same salt.
ImagePtr image(int n, const std::string& salt = "", int first = 5, int row = 96) {
  SessionImage i;
  i.salt = salt;
  for (int t = 0; t < n; ++t) i.tokens.push_back(first + t);
  for (int owner = 0; owner < 2; ++owner) {
    SessionImage::Owner& o = i.owners.emplace_back();
    o.state = {n, n + 3}, o.held = n;
    o.parts = {{n, row}, {std::min(n + 3, 20), 40}};
    o.rows = HostBytes(size_t(o.parts[0].rows * row + o.parts[1].rows * 40));
    for (size_t b = 0; b < o.rows.size(); ++b) o.rows.data()[b] = std::byte(b * 7 + size_t(n));
    if (owner == 1) o.beside = {1.5f, -2.f, float(n)};
  }
  return std::make_shared<const SessionImage>(std::move(i));
}
bool same(const SessionImage& a, const SessionImage& b) {
  bool ok = a.tokens == b.tokens && a.salt == b.salt && a.owners.size() == b.owners.size();
  for (size_t i = 0; ok && i < a.owners.size(); ++i) {
    const SessionImage::Owner &x = a.owners[i], &y = b.owners[i];
    ok = x.state == y.state && x.held == y.held && x.parts == y.parts && x.beside == y.beside &&
         x.rows.size() == y.rows.size() && std::memcmp(x.rows.data(), y.rows.data(), x.rows.size()) == 0;
  }
  return ok;
}
bool always(std::span<const KvState>, int) { return true; }

struct Notes {
  std::mutex mutex;
  std::vector<std::string> lines;
  std::function<void(const std::string&)> sink() {
    return [this](const std::string& l) {
      const std::lock_guard lock(mutex);
      lines.push_back(l);
    };
  }
  std::string all() {
    const std::lock_guard lock(mutex);
    std::string s;
    for (const std::string& l : lines) s += l + "\n";
    return s;
  }
};
DiskTier::Config config(const TempFolder& dir, Notes* notes = nullptr, int64_t most = 64 << 20) {
  return {.folder = dir.path(),
          .most = most,
          .most_waiting = 64 << 20,
          .whose = kWhose,
          .on_note = notes ? notes->sink() : std::function<void(const std::string&)>()};
}
std::vector<int32_t> tokens_of(int n, int first = 5) {
  std::vector<int32_t> t;
  for (int i = 0; i < n; ++i) t.push_back(first + i);
  return t;
}

TEST(SessionFile, ReadsWhatItWrote) {
  const TempFolder dir;
  std::filesystem::create_directories(dir.path());
  for (const int n : {1, 17, 70000}) {
    const ImagePtr i = image(n, n == 17 ? "salt!" : "");
    EXPECT_EQ(must(write_session(dir.file("a"), *i, kWhose)), session_file_bytes(*i));
    EXPECT_EQ(int64_t(std::filesystem::file_size(dir.file("a"))), session_file_bytes(*i));
    struct stat st {};
    ASSERT_EQ(::stat(dir.file("a").c_str(), &st), 0);
    EXPECT_EQ(st.st_mode & 0777, 0600u);
    EXPECT_TRUE(same(must(read_session(dir.file("a"), kWhose)), *i));
    EXPECT_FALSE(read_session(dir.file("a"), kOther));
    SessionHeader::Fingerprint shared = kWhose, rounded = kWhose;
    ++rounded[kFingerprintArithmetic];
    EXPECT_EQ(read_session(dir.file("a"), rounded).error().what,
              fmt::format("expected rows of arithmetic {}, found {}", kWhose[kFingerprintArithmetic] + 1,
                          kWhose[kFingerprintArithmetic]));
    shared[kFingerprintLayout] = 1;
    const auto refused = read_session(dir.file("a"), shared);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().what, "expected shared K/V rows, found split");
    EXPECT_EQ(refused.error().hint, "it can be read with --kv-layout split");
  }
}

// One bit anywhere: refused, or where nothing is said, harmless.
TEST(SessionFile, MutatedFilesAreRefusedOrRight) {
  const TempFolder dir;
  std::filesystem::create_directories(dir.path());
  const ImagePtr i = image(150, "s");
  must(write_session(dir.file("a"), *i, kWhose));
  const auto whole = read_bytes(dir.file("a"));
  std::mt19937 rng(1);
  int refused = 0, right = 0;
  const int n = std::getenv("FACET_TEST_FULL") ? 10000 : 600;
  for (int k = 0; k < n; ++k) {
    auto b = whole;
    const int changes = 1 + int(rng() % 3);
    for (int c = 0; c < changes; ++c) {
      const size_t at = rng() % 2 ? rng() % 1000 : rng() % b.size();
      switch (rng() % 4) {
        case 0:
          b[at] ^= std::byte(1 << rng() % 8);
          break;
        case 1:
          b[at] = std::byte(rng());
          break;
        case 2:
          b.resize(rng() % 8 ? std::max<size_t>(at, 1200) : at);
          break;
        default:
          for (size_t j = 0; j < 4 && at + j < b.size(); ++j) b[at + j] = std::byte(rng() % 3 ? 0xff : 0);
      }
    }
    write_bytes(dir.file("b"), b);
    const auto got = read_session(dir.file("b"), kWhose);
    ++(got ? right : refused);
    EXPECT_TRUE(!got || same(*got, *i)) << "mutation " << k;
  }
  EXPECT_GT(refused, n / 2);
  std::printf("%d refused, %d right\n", refused, right);
}

// A header that is sealed, and lies.
TEST(SessionFile, HostileHeadersAreRefused) {
  const TempFolder dir;
  std::filesystem::create_directories(dir.path());
  must(write_session(dir.file("a"), *image(50), kWhose));
  const auto refuses = [&](const std::function<void(SessionHeader&)>& change) {
    SessionBytes s = open_session_bytes(dir.file("a"));
    change(s.header);
    const auto head = session_header_bytes(s.header);
    std::memcpy(s.file.data(), head.data(), std::min(head.size(), s.file.size()));
    write_bytes(dir.file("b"), s.file);
    return !read_session(dir.file("b"), kWhose);
  };
  EXPECT_FALSE(refuses([](SessionHeader&) {}));
  EXPECT_TRUE(refuses([](SessionHeader& h) { h.owners[0].sections[0].rows = uint64_t(1) << 60; }));
  EXPECT_TRUE(refuses([](SessionHeader& h) { h.owners[0].sections[0].row_bytes = ~uint64_t(0); }));
  EXPECT_TRUE(refuses([](SessionHeader& h) { h.owners[0].sections[0].rows += 1000; }));
  EXPECT_TRUE(refuses([](SessionHeader& h) { h.owners[0].len = -1; }));
  EXPECT_TRUE(refuses([](SessionHeader& h) { h.owners[0].high = 0; }));
  EXPECT_TRUE(refuses([](SessionHeader& h) { h.owners[1].held = -5; }));
  EXPECT_TRUE(refuses([](SessionHeader& h) { h.owners[1].beside.row_bytes = 8; }));
  EXPECT_TRUE(refuses([](SessionHeader& h) { h.owners.resize(40); }));
  EXPECT_TRUE(refuses([](SessionHeader& h) { h.owners.clear(); }));
  EXPECT_TRUE(refuses([](SessionHeader& h) { h.file_bytes += 1; }));
}

std::shared_ptr<DiskRead> read(DiskTier& t, const std::string& name) {
  auto r = t.read(name);
  t.finish_reads();
  EXPECT_TRUE(r->done);
  return r;
}

TEST(DiskTier, KeepsWhatWasUsedLastAcrossProcesses) {
  const TempFolder dir;
  const int64_t one = session_file_bytes(*image(100));
  {
    auto t = must(DiskTier::open(config(dir, nullptr, 3 * one + one / 2)));
    for (const int first : {1000, 2000, 3000}) t->put(image(100, "", first)), t->finish_writes();
    EXPECT_EQ(t->counts().entries, 3);
    EXPECT_EQ(t->find(tokens_of(120, 1000), "", 10, always).len, 100);  // used now
    t->put(image(100, "", 4000));
    t->finish_writes();
    EXPECT_EQ(t->counts().evictions, 1);
    EXPECT_TRUE(t->find(tokens_of(120, 2000), "", 10, always).name.empty());
  }
  auto t = must(DiskTier::open(config(dir, nullptr, 3 * one + one / 2)));
  EXPECT_EQ(t->counts().entries, 3);
  EXPECT_TRUE(t->find(tokens_of(120, 1000), "x", 10, always).name.empty()) << "another salt";
  const auto found = t->find(tokens_of(120, 1000), "", 10, always);
  ASSERT_EQ(found.len, 100);
  EXPECT_EQ(t->find(tokens_of(100, 1000), "", 10, always).len, 99) << "the last token is computed";
  EXPECT_TRUE(same(*read(*t, found.name)->image, *image(100, "", 1000)));
  // A smaller limit: what was used last stays.
  t = nullptr;
  t = must(DiskTier::open(config(dir, nullptr, one + one / 2)));
  EXPECT_EQ(t->counts().entries, 1);
  EXPECT_EQ(t->find(tokens_of(120, 1000), "", 10, always).len, 100);
}

TEST(DiskTier, OneProcessHasTheFolder) {
  const TempFolder dir;
  auto first = must(DiskTier::open(config(dir)));
  EXPECT_EQ(must(DiskTier::open(config(dir))), nullptr);
  first = nullptr;
  EXPECT_NE(must(DiskTier::open(config(dir))), nullptr);
  EXPECT_FALSE(DiskTier::open({.folder = "/proc/nowhere", .most = 1 << 20}));
}

TEST(DiskTier, DamagedFilesGoAndForeignOnesStay) {
  const TempFolder dir;
  {
    auto t = must(DiskTier::open(config(dir)));
    for (const int first : {1000, 2000, 3000}) t->put(image(100, "", first));
  }
  auto files = dir.sessions();
  ASSERT_EQ(files.size(), 3u);
  auto cut = read_bytes(files[0]);
  cut.resize(cut.size() / 2);
  write_bytes(files[0], cut);
  auto flipped = read_bytes(files[1]);  // in a section: seen when it is read
  flipped[flipped.size() - 9] ^= std::byte(4);
  write_bytes(files[1], flipped);
  write_bytes(dir.file("holiday.facet-session"), std::vector<std::byte>(500));
  write_bytes(dir.file("letter.txt"), std::vector<std::byte>(500));
  write_bytes(dir.file("x.facet-session.part"), std::vector<std::byte>(500));
  must(write_session(dir.file("other.facet-session"), *image(100, "", 5000), kOther));
  std::filesystem::create_symlink("/etc/passwd", dir.file("link.facet-session"));

  Notes notes;
  auto t = must(DiskTier::open(config(dir, &notes)));
  EXPECT_FALSE(std::filesystem::exists(files[0])) << notes.all();
  EXPECT_FALSE(std::filesystem::exists(dir.file("x.facet-session.part")));
  for (const char* name : {"holiday.facet-session", "letter.txt", "other.facet-session", "link.facet-session"})
    EXPECT_TRUE(std::filesystem::exists(std::filesystem::symlink_status(dir.file(name)))) << name;
  EXPECT_EQ(notes.lines.size(), 4u) << notes.all();
  EXPECT_TRUE(t->find(tokens_of(120, 5000), "", 10, always).name.empty()) << "another model's";
  int whole = 0;
  for (const int first : {1000, 2000, 3000})
    if (const auto found = t->find(tokens_of(120, first), "", 10, always); !found.name.empty()) {
      const auto r = read(*t, found.name);
      whole += r->image != nullptr;
      EXPECT_EQ(std::filesystem::exists(dir.file(found.name)), r->image != nullptr);
    }
  EXPECT_EQ(whole, 1);
  EXPECT_EQ(t->counts().entries, 2) << "the whole one and the other model's";
}

// A disk without room: the tier says so once, writes nothing, and goes on when there is room.
TEST(DiskTier, AFullDiskPausesIt) {
  const TempFolder dir;
  Notes notes;
  auto t = must(DiskTier::open(config(dir, &notes)));
  t->put(image(100, "", 1000));
  t->finish_writes();
  rlimit before{};
  ::getrlimit(RLIMIT_FSIZE, &before);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{.rlim_cur = 5000, .rlim_max = before.rlim_max};
  ::setrlimit(RLIMIT_FSIZE, &small);
  t->put(image(100, "", 2000));
  t->finish_writes();
  EXPECT_TRUE(t->counts().paused);
  t->put(image(100, "", 3000));  // not tried again and again
  t->finish_writes();
  EXPECT_EQ(notes.lines.size(), 1u) << notes.all();
  EXPECT_NE(notes.all().find("nothing is written there until there is room"), std::string::npos) << notes.all();
  EXPECT_EQ(t->counts().dropped, 2);
  EXPECT_EQ(dir.sessions().size(), 1u);
  EXPECT_FALSE(std::filesystem::exists(dir.sessions()[0] + ".part"));
  EXPECT_EQ(t->find(tokens_of(120, 1000), "", 10, always).len, 100) << "what is there can be read";
  ::setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  t->put(image(100, "", 3000));
  t->finish_writes();
  EXPECT_FALSE(t->counts().paused);
  EXPECT_EQ(dir.sessions().size(), 2u);
  EXPECT_EQ(notes.lines.size(), 2u) << notes.all();
  EXPECT_NE(notes.all().find("there is room again"), std::string::npos) << notes.all();
}

// Whoever asks how it is lets it look, so that it is known without anything to write.
TEST(DiskTier, APauseEndsWhenThereIsRoom) {
  const TempFolder dir;
  Notes notes;
  auto t = must(DiskTier::open(config(dir, &notes)));
  rlimit before{};
  ::getrlimit(RLIMIT_FSIZE, &before);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{.rlim_cur = 5000, .rlim_max = before.rlim_max};
  ::setrlimit(RLIMIT_FSIZE, &small);
  t->put(image(100, "", 2000));
  t->finish_writes();
  ::setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  t->look_for_room();
  t->finish_writes();
  EXPECT_TRUE(t->counts().paused) << "not before its time";
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  t->look_for_room();
  t->finish_writes();
  EXPECT_FALSE(t->counts().paused);
}

// Whoever may write into the folder cannot have other files written or read through a link.
TEST(SessionFile, LinksAreNotFollowed) {
  const TempFolder dir, elsewhere;
  std::filesystem::create_directory(dir.path());
  std::filesystem::create_directory(elsewhere.path());
  write_bytes(elsewhere.file("victim"), std::vector<std::byte>(10));
  std::filesystem::create_symlink(elsewhere.file("victim"), dir.file("a"));
  std::filesystem::create_symlink(elsewhere.file("new"), dir.file("b"));
  std::filesystem::create_symlink(elsewhere.file("new"), dir.file("c.part"));
  for (const char* name : {"a", "b", "c"}) {
    const auto refused = write_session(dir.file(name), *image(50), kWhose);
    ASSERT_FALSE(refused) << name;
    EXPECT_NE(refused.error().message().find("found a link"), std::string::npos) << refused.error().message();
  }
  EXPECT_EQ(read_bytes(elsewhere.file("victim")).size(), 10u);
  EXPECT_FALSE(std::filesystem::exists(elsewhere.file("new")));
  must(write_session(elsewhere.file("saved"), *image(50), kWhose));
  std::filesystem::create_symlink(elsewhere.file("saved"), dir.file("d"));
  EXPECT_TRUE(read_session(elsewhere.file("saved"), kWhose));
  const auto refused = read_session(dir.file("d"), kWhose);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message().find("found a link"), std::string::npos) << refused.error().message();
}

}  // namespace
}  // namespace facet::test
