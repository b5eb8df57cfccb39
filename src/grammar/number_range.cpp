#include "grammar/number_range.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <tuple>

namespace facet::grammar {
namespace {

constexpr size_t kMaxDigits = 16, kMaxBoundDigits = 40;

// A magnitude: digits before the point without leading zeros ("0" for none), digits behind it.
struct Decimal {
  bool negative = false;
  std::string whole = "0", fraction;
  bool zero() const { return whole == "0" && fraction.find_first_not_of('0') == std::string::npos; }
};

Decimal decimal(const Json& v) {
  std::string text = dump_json(v);  // "-12", "0.1", "1e-07"
  // Above 2^53 the shortest spelling of a double is not what it is.
  if (v.is_number_float() && std::abs(v.get<double>()) >= 9007199254740992.0)
    text = fmt::format("{:.0f}", v.get<double>());
  Decimal d;
  if (text[0] == '-') d.negative = true, text.erase(0, 1);
  int exponent = 0;
  if (const size_t e = text.find_first_of("eE"); e != std::string::npos) {
    exponent = std::stoi(text.substr(e + 1));
    text.resize(e);
  }
  size_t point = std::min(text.find('.'), text.size());
  std::string digits = text.substr(0, point) + (point < text.size() ? text.substr(point + 1) : "");
  int at = int(point) + exponent;  // of the point in digits
  if (at < 0) digits.insert(0, size_t(-at), '0'), at = 0;
  if (size_t(at) > digits.size()) digits.append(size_t(at) - digits.size(), '0');
  d.whole = digits.substr(0, size_t(at));
  d.fraction = digits.substr(size_t(at));
  d.whole.erase(0, std::min(d.whole.find_first_not_of('0'), d.whole.size()));
  if (d.whole.empty()) d.whole = "0";
  d.fraction.erase(d.fraction.find_last_not_of('0') + 1);
  if (d.zero()) d.negative = false;
  return d;
}

// Magnitudes from lo to hi; no bound where null.
class Magnitudes {
 public:
  struct End {
    Decimal value;
    bool exclusive;
  };
  Magnitudes(Builder& b, std::optional<End> lo, std::optional<End> hi, size_t digits, const NumberRange& range)
      : b_(b),
        lo_(std::move(lo)),
        hi_(std::move(hi)),
        digits_(uint32_t(digits)),
        fraction_(range.fraction),
        multiple_(range.multiple) {}

  ExprId make() {
    const uint32_t start = state({});
    for (uint32_t k = 1; k <= digits_; ++k) {
      const bool below = lo_ && lo_->value.whole.size() > k, above = hi_ && hi_->value.whole.size() < k;
      if (below || above) continue;
      const State first{1, k, 0, lo_ && lo_->value.whole.size() == k, hi_ && hi_->value.whole.size() == k, 0};
      arcs_.push_back({start, state(first), b_.empty()});
    }
    for (size_t i = 1; i < order_.size(); ++i) expand(order_[i], uint32_t(i));
    return b_.graph(uint32_t(order_.size()), std::move(arcs_), std::move(accept_));
  }

 private:
  struct State {
    uint32_t phase = 0;  // 1: before the point, 2: behind it
    uint32_t length = 0, at = 0;
    bool at_lo = false, at_hi = false;  // what was read is how the bound begins
    uint32_t remainder = 0;
    auto operator<=>(const State&) const = default;
  };
  uint32_t state(State s) {
    b_.budget().spend(12);
    // Away from the bounds only what is still to come matters, of the remainder as much as the digits to come leave.
    if (s.phase == 1 && s.at > 0 && !s.at_lo && !s.at_hi) {
      s.length -= s.at - 1;
      s.at = 1;
    }
    if (s.phase == 1 && multiple_ > 1) {
      uint32_t left = multiple_;
      for (uint32_t i = s.at; i < s.length && left > 1; ++i) left /= std::gcd(left, 10u);
      s.remainder %= left;
    }
    const auto [it, fresh] = ids_.try_emplace(s, uint32_t(order_.size()));
    if (fresh) order_.push_back(s);
    return it->second;
  }
  static int digit(const Decimal& d, const State& s) {
    if (s.phase == 1) return d.whole[s.at] - '0';
    return s.at < d.fraction.size() ? d.fraction[s.at] - '0' : 0;
  }
  static bool rest_is_zero(const Decimal& d, uint32_t from) {
    return from >= d.fraction.size() || d.fraction.find_first_not_of('0', from) == std::string::npos;
  }
  // The number may end with `from` digits behind the point.
  bool may_end(const State& s, uint32_t from) const {
    if (s.remainder != 0) return false;
    if (s.at_lo && (!rest_is_zero(lo_->value, from) || lo_->exclusive)) return false;
    return !(s.at_hi && rest_is_zero(hi_->value, from) && hi_->exclusive);
  }

  void expand(const State s, uint32_t id) {
    if (s.phase == 1 && s.at == s.length) {
      if (may_end(s, 0)) accept_.push_back(id);
      if (fraction_ > 0) arcs_.push_back({id, state({2, 0, 0, s.at_lo, s.at_hi, 0}), b_.byte('.', '.')});
      return;
    }
    if (s.phase == 2 && s.at > 0 && may_end(s, s.at)) accept_.push_back(id);
    if (s.phase == 2 && s.at == fraction_) return;
    const int least = s.phase == 1 && s.at == 0 && s.length > 1 ? 1 : 0;
    for (int d = least; d <= 9; ++d) {
      if (s.at_lo && d < digit(lo_->value, s)) continue;
      if (s.at_hi && d > digit(hi_->value, s)) continue;
      State to = s;
      ++to.at;
      to.at_lo = s.at_lo && d == digit(lo_->value, s);
      to.at_hi = s.at_hi && d == digit(hi_->value, s);
      to.remainder = s.phase == 1 ? (s.remainder * 10 + uint32_t(d)) % multiple_ : 0;
      arcs_.push_back(
          {id, state(to), digit_[d] ? digit_[d] : (digit_[d] = b_.byte(uint8_t('0' + d), uint8_t('0' + d)))});
    }
  }

  Builder& b_;
  std::optional<End> lo_, hi_;
  const uint32_t digits_, fraction_, multiple_;
  std::map<State, uint32_t> ids_;
  std::vector<State> order_;
  std::vector<Arc> arcs_;
  std::vector<uint32_t> accept_;
  ExprId digit_[10] = {};
};

// Between numbers of few digits behind the point, that is from the next (or up to the last) of them.
void round(Magnitudes::End& end, bool up) {
  Decimal& d = end.value;
  if (d.fraction.size() <= kMaxDigits) return;
  d.fraction.resize(kMaxDigits);
  end.exclusive = false;
  if (!up) return;
  std::string digits = d.whole + d.fraction;
  size_t i = digits.size();
  while (i > 0 && digits[i - 1] == '9') digits[--i] = '0';
  if (i > 0)
    ++digits[i - 1];
  else
    digits.insert(0, 1, '1');
  d.whole = digits.substr(0, digits.size() - kMaxDigits);
  d.fraction = digits.substr(digits.size() - kMaxDigits);
}

}  // namespace

std::string number_range(Builder& b, const NumberRange& range, ExprId& out) {
  std::optional<Magnitudes::End> lo, hi;
  if (range.min) lo = {decimal(range.min->value), range.min->exclusive};
  if (range.max) hi = {decimal(range.max->value), range.max->exclusive};
  if (lo) round(*lo, !lo->value.negative);
  if (hi) round(*hi, hi->value.negative);
  const auto far = [](const Magnitudes::End& e) { return e.value.whole.size() > kMaxBoundDigits; };
  if (lo && far(*lo)) {
    if (!lo->value.negative) return fmt::format("expected at most {} digits before the point", kMaxBoundDigits);
    lo.reset();
  }
  if (hi && far(*hi)) {
    if (hi->value.negative) return fmt::format("expected at most {} digits before the point", kMaxBoundDigits);
    hi.reset();
  }
  size_t digits = kMaxDigits;
  for (const auto* end : {&lo, &hi})
    if (*end) digits = std::max(digits, (*end)->value.whole.size());
  std::vector<ExprId> all;
  if (!hi || !hi->value.negative) {  // zero and above
    const bool positive = lo && !lo->value.negative;
    all.push_back(Magnitudes(b, positive ? lo : std::nullopt, hi, digits, range).make());
  }
  if (!lo || lo->value.negative) {  // below zero
    const bool negative = hi && hi->value.negative;
    const Magnitudes::End above_zero{Decimal{}, true};
    all.push_back(b.seq({b.byte('-', '-'), Magnitudes(b, negative ? hi : above_zero, lo, digits, range).make()}));
  }
  out = b.alt(std::move(all));
  return "";
}

}  // namespace facet::grammar
