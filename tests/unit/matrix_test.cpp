// facet bench matrix: what is noise, what is told, in which order, and what a file keeps.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <random>

#include "tools/matrix_file.h"
#include "tools/matrix_report.h"

namespace facet {
namespace {

MatrixOptions options(int configs, int runs) {
  MatrixOptions o;
  for (int i = 0; i < configs; ++i) o.configs.push_back({.model = "m" + std::to_string(i) + ".gguf"});
  o.contexts = {0, 100}, o.runs = runs;
  o.sets = {{"chat", {"a"}, false}, {"json", {"b"}, false}};
  return o;
}
MatrixRun run_of(const MatrixOptions& o, const MatrixStep& s, double tok_s) {
  return {.key = matrix_key(o, s),
          .prompts = 1,
          .prompt_tokens = 100,
          .decoded = 100,
          .steps = 100,
          .prefill_s = 100 / tok_s,
          .decode_s = 100 / tok_s};
}
bool tells(const MatrixReport& r) {
  return std::any_of(r.rows.begin(), r.rows.end(),
                     [](const MatrixRow& x) { return x.decode.differs() || x.prefill.differs(); });
}

TEST(Statistics, WelchIntervals) {
  // Equal spreads and sizes: as many degrees of freedom as for one variance; t(4) at 97.5 % is 2.776445.
  const Sample a{3, 10, 1}, b{3, 12, 1};
  const Interval i = welch_interval(a, b, .95);
  EXPECT_NEAR(i.high, 2 + 2.776445 * std::sqrt(2. / 3), 1e-5);
  EXPECT_NEAR(i.low, 2 - 2.776445 * std::sqrt(2. / 3), 1e-5);
  // One of them without spread: t(2) is 4.302653.
  EXPECT_NEAR(welch_interval({3, 10, 0}, b, .95).high, 2 + 4.302653 * std::sqrt(1. / 3), 1e-5);
  EXPECT_EQ(percentile({4, 1, 3, 2}, .5), 2);
  EXPECT_EQ(percentile({4, 1, 3, 2}, 1), 4);
  EXPECT_NEAR(sample_of(std::vector<double>{1, 2, 3, 4}).sd, 1.2909944, 1e-6);
}

TEST(Statistics, IntervalsHoldTheTruthAsOftenAsTheySay) {
  std::mt19937 rng(1);
  std::normal_distribution<double> unit;
  int held = 0;
  constexpr int kTrials = 4000;
  for (int t = 0; t < kTrials; ++t) {
    std::vector<double> a(5), b(5);
    for (double& x : a) x = 100 + unit(rng);
    for (double& x : b) x = 103 + 3 * unit(rng);
    held += welch_interval(sample_of(a), sample_of(b), .95).holds(3);
  }
  EXPECT_NEAR(held / double(kTrials), .95, .02);  // more than five standard errors
}

// Tables of equal configurations. A planted verdict that looks at means alone tells something in all of them; one that
// forgets how many comparisons there are, in too many.
TEST(Matrix, NoiseIsNoVerdict) {
  const MatrixOptions o = options(3, 4);
  std::mt19937 rng(2);
  std::normal_distribution<double> unit;
  int told = 0, by_means = 0, one_by_one = 0;
  constexpr int kTables = 300;
  for (int t = 0; t < kTables; ++t) {
    std::vector<MatrixRun> runs;
    for (const MatrixStep& s : matrix_steps(o)) runs.push_back(run_of(o, s, 100 + 2 * unit(rng)));
    const MatrixReport r = matrix_report(o, runs);
    EXPECT_EQ(r.comparisons, 2 * 2 * 2 * 2);
    told += tells(r);
    bool means = false, single = false;
    for (size_t i = 0; i < r.rows.size(); ++i) {
      const Sample &first = r.rows[i / 3 * 3].decode.sample, &x = r.rows[i].decode.sample;
      if (i % 3 == 0) continue;
      means |= x.mean != first.mean;
      single |= !welch_interval(first, x, .95).holds(0);
    }
    by_means += means, one_by_one += single;
  }
  const double limit = kTables * kNoise + 4 * std::sqrt(kTables * kNoise * (1 - kNoise));
  EXPECT_LT(told, limit);
  EXPECT_GT(by_means, limit);
  EXPECT_GT(one_by_one, limit);
}

TEST(Matrix, ADifferenceIsTold) {
  const MatrixOptions o = options(2, 5);
  std::mt19937 rng(3);
  std::normal_distribution<double> unit;
  std::vector<MatrixRun> runs;
  for (const MatrixStep& s : matrix_steps(o)) runs.push_back(run_of(o, s, (s.config ? 120 : 100) + unit(rng)));
  const MatrixReport r = matrix_report(o, runs);
  ASSERT_EQ(r.rows.size(), 8u);
  for (const MatrixRow& x : r.rows) EXPECT_EQ(x.decode.differs(), x.index == 1);
  EXPECT_NEAR(r.rows[1].decode.change->low + r.rows[1].decode.change->high, .4, .06);
  EXPECT_EQ(r.rows[1].config, "m1.gguf");
  EXPECT_NE(matrix_markdown(r, "t").find("| m1.gguf | 1"), std::string::npos);
  EXPECT_NE(matrix_svg(r, "a < b").find("a &lt; b"), std::string::npos);
}

// An interval that holds zero says "no difference" only where it is narrow; a wide one says nothing.
TEST(Matrix, WhatIsTooNoisyIsSaid) {
  const MatrixOptions o = options(2, 5);
  for (const double sd : {.2, 20.}) {
    std::mt19937 rng(5);
    std::normal_distribution<double> noise(0, sd);
    std::vector<MatrixRun> runs;
    for (const MatrixStep& s : matrix_steps(o)) runs.push_back(run_of(o, s, 100 + noise(rng)));
    const std::string text = matrix_markdown(matrix_report(o, runs), "t");
    const bool noisy = text.find("too noisy to tell") != std::string::npos;
    EXPECT_EQ(noisy, sd > 1) << text;
    EXPECT_NE(text.find("no difference") != std::string::npos, noisy) << text;
  }
}

// Joules of a run over all its tokens, each answer's first among them; a run that was not measured says nothing.
TEST(Matrix, EnergyIsPerToken) {
  const MatrixOptions o = options(2, 4);
  std::vector<MatrixRun> runs;
  for (const MatrixStep& s : matrix_steps(o)) {
    runs.push_back(run_of(o, s, 100));
    EXPECT_FALSE(runs.back().joules_per_token());
    if (s.context == 0) runs.back().joules = (s.config ? 404 : 202) + s.run;  // of 101 tokens
  }
  const MatrixReport r = matrix_report(o, runs);
  for (const MatrixRow& x : r.rows) {
    EXPECT_EQ(x.joules.sample.n, x.context == 0 ? 4 : 0);
    if (x.context == 0) {
      EXPECT_NEAR(x.joules.sample.mean, (x.index ? 4 : 2) + 1.5 / 101, 1e-9);
    }
    EXPECT_EQ(x.joules.differs(), x.context == 0 && x.index == 1);
  }
  EXPECT_NE(matrix_markdown(r, "t").find("J a token"), std::string::npos);
  for (MatrixRun& x : runs) x.joules.reset();
  EXPECT_EQ(matrix_markdown(matrix_report(o, runs), "t").find("J a token"), std::string::npos);
  runs[0].joules = 12.5;
  EXPECT_EQ(matrix_run_from_json(to_json(runs[0]), "x")->joules, 12.5);
}

// A machine that slows down steadily. Measured one configuration after the other (planted), equal ones differ.
TEST(Matrix, ASlowMachineSlowsAllAlike) {
  const MatrixOptions o = options(4, 6);
  std::mt19937 rng(4);
  std::normal_distribution<double> unit;
  auto measured = [&](const std::vector<MatrixStep>& steps) {
    std::vector<MatrixRun> runs;
    for (size_t i = 0; i < steps.size(); ++i)
      runs.push_back(run_of(o, steps[i], 100 - 20. * double(i) / double(steps.size()) + .2 * unit(rng)));
    return tells(matrix_report(o, runs));
  };
  std::vector<MatrixStep> steps = matrix_steps(o);
  EXPECT_FALSE(measured(steps));
  std::stable_sort(steps.begin(), steps.end(), [](const auto& a, const auto& b) { return a.config < b.config; });
  EXPECT_TRUE(measured(steps));
}

struct MatrixFiles : testing::Test {
  std::string path = (std::filesystem::temp_directory_path() / "facet_matrix_test.jsonl").string();
  Json settings = {{"n_predict", 64}, {"device", "cpu"}, {"files", {{"m0.gguf", "a"}}}, {"sets", {{"chat", "x"}}}};
  void SetUp() override { std::filesystem::remove(path); }
  void TearDown() override { std::filesystem::remove(path); }
};

TEST_F(MatrixFiles, WhatIsThereIsNotMeasuredAgain) {
  const MatrixOptions o = options(2, 3);
  std::set<MatrixKey> done;
  int measured = 0;
  for (int round = 0; measured < int(matrix_steps(o).size()); ++round) {  // interrupted after every five
    ASSERT_LT(round, 20);
    auto f = MatrixFile::open(path, settings);
    ASSERT_TRUE(f) << f.error().message();
    done.clear();
    for (const MatrixRun& r : f->runs()) done.insert(r.key);
    EXPECT_EQ(int(f->runs().size()), measured);
    EXPECT_EQ(int(done.size()), measured);
    const int until = measured + 5;
    ASSERT_TRUE(run_matrix(
        o, done, [&](const MatrixStep& s) { return Result<MatrixRun>(run_of(o, s, 50 + s.run)); },
        [&](const MatrixRun& r) { return ++measured, f->add(r); }, [&] { return measured >= until; }));
  }
}

TEST_F(MatrixFiles, OtherSettingsAreRefused) {
  const MatrixOptions o = options(1, 2);
  auto f = MatrixFile::open(path, settings);
  ASSERT_TRUE(f && f->add(run_of(o, {}, 10)));
  auto opens = [&](const Json& s) { return bool(MatrixFile::open(path, s)); };
  EXPECT_TRUE(opens(settings));
  Json other = settings;
  other["sets"]["json"] = "y", other["files"]["m1.gguf"] = "b";
  EXPECT_TRUE(opens(other)) << "other names are more of it";
  for (const auto& [key, value] : std::vector<std::pair<const char*, Json>>{{"n_predict", 32},
                                                                            {"device", "gpu"},
                                                                            {"commit", "new"},
                                                                            {"files", {{"m0.gguf", "b"}}},
                                                                            {"sets", {{"chat", "y"}}}}) {
    other = settings;
    other[key] = value;
    EXPECT_FALSE(opens(other)) << key;
  }
  std::ofstream(path, std::ios::app) << "{\"model\": \"m0.gguf\"\n";
  EXPECT_FALSE(opens(settings)) << "a line that is cut off";
}

}  // namespace
}  // namespace facet
