// Values are on a line over their levels, up to rounding. Two neighbours are likely to be one level
// apart, which tells the levels of all; then each pair of values bounds the scale, and with a
// scale, each value bounds the offset.

#include "quantized/offsets.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/kernels.h"

namespace bf16codecs::quantized {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// The bits of a number, the leading one included, and the exponent of the smallest normal one.
struct Shape {
  int bits, least_exponent;

  // The distance of two numbers near x.
  double step(double x) const {
    int exponent;
    std::frexp(x, &exponent);
    return std::ldexp(1.0, std::max(exponent, least_exponent) - bits);
  }
  double round(double x) const { return std::nearbyint(x / step(x)) * step(x); }
};

Shape shape_of(Precision precision) {
  switch (precision) {
    case Precision::binary32:
      return {24, -125};
    case Precision::binary16:
      return {11, -13};
    default:
      return {8, -125};
  }
}

// By how much a value may differ from what was rounded to it.
double error_of(Precision precision, double value) {
  double step = shape_of(precision).step(value);
  if (precision == Precision::binary16_bfloat16) step += shape_of(Precision::binary16).step(value);
  return step / 2;
}

// The number of a range that has the fewest bits: 0, if it is in it.
float simplest(double low, double high) {
  if (low <= 0 && high >= 0) return 0;
  if (high < 0) return -simplest(-high, -low);
  constexpr int kBits = 24;
  for (int bits = 1; bits < kBits; ++bits) {
    const double step = Shape{bits, -125}.step(high), number = std::floor(high / step) * step;
    if (number >= low) return static_cast<float>(number);
  }
  return static_cast<float>(low + (high - low) / 2);
}

// Values of a group that differ: more are no integers of five bits.
constexpr size_t kMostValues = 32;
// Numbers of a range, and zeros on either side of the likely one, that are tried.
constexpr int kTries = 8;

}  // namespace

void OffsetFinder::Range::limit(double least, double most) {
  low = std::max(low, least);
  high = std::min(high, most);
}

OffsetFinder::OffsetFinder(const Kind& kind, Precision precision)
    : kind_(kind), precision_(precision), half_(half(precision)) {}

// Returns false if the values cannot be on a line.
bool OffsetFinder::collect(const float* values, size_t n) {
  sorted_.clear();
  for (size_t i = 0; i < n; ++i) {
    const float value = values[i];
    const bool is_negative_zero = value == 0 && std::signbit(value);
    if (!std::isfinite(value) || is_negative_zero) return false;
    const auto at = std::lower_bound(sorted_.begin(), sorted_.end(), value);
    if (at != sorted_.end() && *at == value) continue;
    if (sorted_.size() == kMostValues) return false;
    sorted_.insert(at, value);
  }
  return true;
}

GroupNumbers OffsetFinder::if_exact(const GroupNumbers& numbers) const {
  if (!are_within(kind_.levels.formula, numbers.scale, numbers.offset)) return {};
  const size_t n = sorted_.size();
  float scales[kMostValues], offsets[kMostValues];
  uint8_t symbols[kMostValues], low[kMostValues];
  std::fill_n(scales, n, numbers.scale);
  std::fill_n(offsets, n, numbers.offset);
  const bool is_exact = kernels().quantized->quantize_with_offsets(
      kind_.levels, precision_, sorted_.data(), scales, offsets, n, {symbols, low});
  return is_exact ? numbers : GroupNumbers{};
}

// Of a group of one value, which is the offset, or the scale.
GroupNumbers OffsetFinder::of_constant() {
  const float value = sorted_.front();
  const bool is_difference = kind_.levels.formula == Formula::difference && value != 0;
  return if_exact(is_difference ? GroupNumbers{value, 0} : GroupNumbers{last_scale_, value});
}

// The scales that the distances between values allow.
OffsetFinder::Range OffsetFinder::scales() const {
  Range range{0, kInfinity};
  for (size_t i = 0; i < values_.size(); ++i) {
    for (size_t j = i + 1; j < values_.size(); ++j) {
      const Range &a = values_[i].bounds, &b = values_[j].bounds;
      const double levels = values_[j].level - values_[i].level;
      range.limit((b.low - a.high) / levels, (b.high - a.low) / levels);
    }
  }
  return range;
}

// Calls function with numbers of a range, until it finds something: the simplest one; those of the
// precision that libraries multiply out in, if there are few; and the simplest of each part.
template <typename Function>
GroupNumbers OffsetFinder::try_range(const Range& range, Function function) const {
  if (range.low > range.high) return {};
  const double size = range.high - range.low, step = shape_of(half_).step(range.high);
  GroupNumbers found = function(simplest(range.low, range.high));
  if (size < kTries * step) {
    double number = std::ceil(range.low / step) * step;
    for (; found.scale == 0 && number <= range.high; number += step)
      found = function(static_cast<float>(number));
  }
  const double part = size / kTries;
  for (int k = 0; found.scale == 0 && k < kTries; ++k)
    found = function(simplest(range.low + k * part, range.low + (k + 1) * part));
  return found;
}

// Sums: with a scale, each value bounds the offset.
GroupNumbers OffsetFinder::with_scale(float scale) const {
  Range offsets{-kInfinity, kInfinity};
  for (const Value& value : values_) {
    double product = static_cast<float>(value.level * scale);
    if (kind_.levels.formula == Formula::rounded_sum) product = shape_of(half_).round(product);
    const double error = error_of(precision_, value.value);
    offsets.limit(value.value - error - product, value.value + error - product);
  }
  return try_range(offsets, [&](float offset) { return if_exact({scale, offset}); });
}

// Differences: with a zero, each value bounds the scale.
GroupNumbers OffsetFinder::with_zero(float zero) const {
  Range scales{0, kInfinity};
  for (const Value& value : values_) {
    const double level = shape_of(half_).round(static_cast<float>(value.level - zero));
    if (level == 0) continue;
    const double error = error_of(precision_, value.value);
    const double a = (value.value - error) / level, b = (value.value + error) / level;
    scales.limit(std::min(a, b), std::max(a, b));
  }
  return try_range(scales, [&](float scale) { return if_exact({scale, zero}); });
}

// Zeros are numbers of the precision that libraries multiply out in.
GroupNumbers OffsetFinder::with_zeros(double scale) const {
  double sum = 0;
  for (const Value& value : values_) sum += value.level - value.value / scale;
  const Shape shape = shape_of(half_);
  const double likely = shape.round(sum / static_cast<double>(values_.size()));
  GroupNumbers found = with_zero(static_cast<float>(likely));
  for (int k = 1; k <= kTries && found.scale == 0; ++k) {
    found = with_zero(static_cast<float>(likely + k * shape.step(likely)));
    if (found.scale == 0) found = with_zero(static_cast<float>(likely - k * shape.step(likely)));
  }
  return found;
}

// Tries values that have so many levels from the least to the largest.
GroupNumbers OffsetFinder::find_with(double levels) {
  const double least = sorted_.front(), range = sorted_.back() - least;
  const Formula formula = kind_.levels.formula;
  values_.clear();
  for (const double value : sorted_) {
    double error = error_of(precision_, value);
    if (formula == Formula::rounded_sum) error += error_of(half_, range);
    if (formula == Formula::difference) error += error_of(half_, value);
    const double level = std::nearbyint((value - least) / range * levels);
    if (!values_.empty() && level <= values_.back().level) return {};
    values_.push_back({value, {value - error, value + error}, level});
  }
  const Range range_of_scales = scales();
  if (range_of_scales.low > range_of_scales.high) return {};
  // The least value need not have the first level. With roundings between, it matters which it has.
  GroupNumbers found;
  for (Value& value : values_) value.level += kind_.first;
  const double last = double{kind_.tops.front()} + kind_.first;
  while (found.scale == 0 && values_.back().level <= last) {
    found = formula == Formula::difference
                ? with_zeros((range_of_scales.low + range_of_scales.high) / 2)
                : try_range(range_of_scales, [&](float scale) { return with_scale(scale); });
    for (Value& value : values_) ++value.level;
  }
  return found;
}

GroupNumbers OffsetFinder::find(const float* values, size_t n) {
  if (!collect(values, n)) return {};
  GroupNumbers found;
  if (sorted_.size() < 2) {
    found = n == 0 ? found : of_constant();
  } else {
    double gap = kInfinity;
    for (size_t i = 1; i < sorted_.size(); ++i)
      gap = std::min<double>(gap, double{sorted_[i]} - sorted_[i - 1]);
    const double most = kind_.tops.front(), range = double{sorted_.back()} - sorted_.front();
    const double by_gap = std::nearbyint(range / gap);
    // Roundings make a gap smaller or larger than a level.
    for (const double more : {0.0, -1.0, 1.0, -2.0}) {
      const double levels = by_gap + more;
      if (found.scale != 0 || levels < 1 || levels > most) continue;
      found = find_with(levels);
    }
  }
  if (found.scale != 0) last_scale_ = found.scale;
  return found;
}

}  // namespace bf16codecs::quantized
