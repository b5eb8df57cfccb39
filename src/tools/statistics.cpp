#include "tools/statistics.h"

#include <algorithm>
#include <boost/math/distributions/students_t.hpp>
#include <cmath>

#include "base/check.h"

namespace facet {

double mean_of(std::span<const double> values) {
  double sum = 0;
  for (const double v : values) sum += v;
  return values.empty() ? 0 : sum / double(values.size());
}

Sample sample_of(std::span<const double> values) {
  Sample s{.n = int(values.size()), .mean = mean_of(values)};
  if (s.n < 2) return s;
  double squares = 0;
  for (const double v : values) squares += (v - s.mean) * (v - s.mean);
  s.sd = std::sqrt(squares / (s.n - 1));
  return s;
}

double percentile(std::vector<double> values, double p) {
  if (values.empty()) return 0;
  const auto rank = size_t(std::ceil(p * double(values.size())));
  const auto at = values.begin() + ptrdiff_t(std::clamp<size_t>(rank, 1, values.size()) - 1);
  std::nth_element(values.begin(), at, values.end());
  return *at;
}

Interval welch_interval(const Sample& a, const Sample& b, double confidence) {
  CHECK(a.n >= 2 && b.n >= 2, "{} and {} measurements say nothing about their spread", a.n, b.n);
  CHECK(confidence > 0 && confidence < 1, "a confidence of {}", confidence);
  const double difference = b.mean - a.mean, va = a.sd * a.sd / a.n, vb = b.sd * b.sd / b.n;
  if (va + vb <= 0) return {difference, difference};
  // Degrees of freedom by Welch and Satterthwaite.
  const double freedom = (va + vb) * (va + vb) / (va * va / (a.n - 1) + vb * vb / (b.n - 1));
  const boost::math::students_t t(freedom);
  const double half = boost::math::quantile(boost::math::complement(t, (1 - confidence) / 2)) * std::sqrt(va + vb);
  return {difference - half, difference + half};
}

}  // namespace facet
