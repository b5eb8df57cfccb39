#pragma once
#include <span>
#include <vector>

// What a number of measurements says.
namespace facet {

struct Sample {
  int n = 0;
  double mean = 0, sd = 0;  // sd: of one measurement, n - 1 below the line; 0 where n < 2
};
Sample sample_of(std::span<const double> values);

double mean_of(std::span<const double> values);
// The value that a share p of them does not exceed (nearest rank); 0 of nothing. p in [0, 1].
double percentile(std::vector<double> values, double p);

struct Interval {
  double low = 0, high = 0;
  bool holds(double x) const { return low <= x && x <= high; }
};
// Of the difference of two means, b - a, by Welch's method (variances need not be equal): with the given confidence in
// (0, 1) it holds the true one where measurements are normal and independent. Both samples have n >= 2.
Interval welch_interval(const Sample& a, const Sample& b, double confidence);

}  // namespace facet
