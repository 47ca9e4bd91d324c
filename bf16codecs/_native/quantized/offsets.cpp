// Values are on a line over their levels, up to rounding. Two neighbours are likely to be one level
// apart, which tells the levels of all; then each pair of values bounds the scale, and with a
// scale, each value bounds the offset.

#include "quantized/offsets.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "kernels/kernels.h"
#include "quantized/shape.h"

namespace bf16codecs::quantized {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
// Numbers of a range, and zeros on either side of the likely one, that are tried.
constexpr int kTries = 8;

// By how much a value may differ from what was rounded to it.
double error_of(Precision precision, double value) {
  double step = shape_of(precision).step(value);
  const double of_binary16 = shape_of(Precision::binary16).step(value);
  const bool is_coarser = precision == Precision::bfloat16_binary16 && of_binary16 > step;
  if (precision == Precision::binary16_bfloat16 || is_coarser) step += of_binary16;
  return step / 2;
}

// The number of a range that has the fewest bits: 0, if it is in it.
float simplest_of(double low, double high) {
  if (low <= 0 && high >= 0) return 0;
  if (high < 0) return -simplest_of(-high, -low);
  auto least = static_cast<float>(low), most = static_cast<float>(high);
  if (least < low) least = std::nextafter(least, most);
  if (most > high) most = std::nextafter(most, 0.0f);
  return least < most ? simplest({least, most}) : least;
}

}  // namespace

OffsetFinder::OffsetFinder(const Kind& kind, Precision precision, size_t& failures)
    : kind_(kind), precision_(precision), half_(half(precision)), failures_(failures) {}

// Whether a value is among those of the group so far. All are compared, which compilers make
// vectors of.
bool OffsetFinder::has_occurred(float value) const {
  const auto bits = std::bit_cast<uint32_t>(value);
  uint32_t has = 0;
  for (const float other : values_) has |= std::bit_cast<uint32_t>(other) == bits ? 1 : 0;
  return has != 0;
}

// Returns false if the values cannot be on a line.
bool OffsetFinder::collect(const float* values, size_t n) {
  constexpr float kNone = std::numeric_limits<float>::quiet_NaN();
  std::fill_n(values_, kMostValues, kNone);
  n_ = 0;
  for (size_t i = 0; i < n; ++i) {
    const float value = values[i];
    if (!std::isfinite(value)) return false;  // NaN may have the bits of kNone
    if (has_occurred(value)) continue;
    const bool is_negative_zero = value == 0 && std::signbit(value);
    if (is_negative_zero || n_ == kMostValues) return false;
    size_t at = n_++;
    for (; at != 0 && values_[at - 1] > value; --at) values_[at] = values_[at - 1];
    values_[at] = value;
  }
  return true;
}

ScaleAndOffset OffsetFinder::if_exact(const ScaleAndOffset& numbers) {
  if (tries_ != 0) --tries_;
  if (!are_within(kind_.levels.formula, numbers.scale, numbers.offset)) return {};
  float scales[kMostValues], offsets[kMostValues];
  uint8_t symbols[kMostValues], low[kMostValues];
  std::fill_n(scales, n_, numbers.scale);
  std::fill_n(offsets, n_, numbers.offset);
  const bool is_exact = kernels().quantized->quantize_with_offsets(
      kind_.levels, precision_, values_, scales, offsets, n_, {symbols, low});
  return is_exact ? numbers : ScaleAndOffset{};
}

// Of a group of one value, which is the offset, or the scale.
ScaleAndOffset OffsetFinder::of_constant() {
  const float value = values_[0];
  const bool is_difference = kind_.levels.formula == Formula::difference && value != 0;
  return if_exact(is_difference ? ScaleAndOffset{value, 0} : ScaleAndOffset{last_scale_, value});
}

// The scales that the distances between values allow.
Range OffsetFinder::scales() const {
  double low[kMostValues] = {}, high[kMostValues];
  std::fill_n(high, n_, kInfinity);
  for (size_t i = 0; i < n_; ++i) {
    for (size_t j = i + 1; j < n_; ++j) {
      const double inverse = 1 / (levels_[j] - levels_[i]);
      const double distance = double{values_[j]} - values_[i];
      const double error = both_errors_[j] + both_errors_[i];
      const double least = (distance - error) * inverse, most = (distance + error) * inverse;
      low[j] = low[j] > least ? low[j] : least;
      high[j] = high[j] < most ? high[j] : most;
    }
  }
  return {*std::max_element(low, low + n_), *std::min_element(high, high + n_)};
}

// Calls function with numbers of a range, until it finds something: the simplest one; those of the
// precision that libraries multiply out in, if there are few; and the simplest of each part.
template <typename Function>
ScaleAndOffset OffsetFinder::try_range(const Range& range, Function function) {
  if (range.low > range.high || tries_ == 0) {
    if (tries_ != 0) --tries_;
    return {};
  }
  const double size = range.high - range.low, step = shape_of(half_).step(range.high);
  ScaleAndOffset found = function(simplest_of(range.low, range.high));
  if (size < kTries * step) {
    double number = std::ceil(range.low / step) * step;
    for (; found.scale == 0 && number <= range.high && tries_ != 0; number += step)
      found = function(static_cast<float>(number));
  }
  const double part = size / kTries;
  for (int k = 0; found.scale == 0 && k < kTries && tries_ != 0; ++k)
    found = function(simplest_of(range.low + k * part, range.low + (k + 1) * part));
  return found;
}

// Sums: with a scale, each value bounds the offset.
Range OffsetFinder::offsets_with(float scale) const {
  Range offsets{-kInfinity, kInfinity};
  for (size_t i = 0; i < n_; ++i) {
    double product = static_cast<float>(levels_[i] * scale);
    if (kind_.levels.formula == Formula::rounded_sum) product = shape_of(half_).round(product);
    offsets.limit(values_[i] - errors_[i] - product, values_[i] + errors_[i] - product);
  }
  return offsets;
}

ScaleAndOffset OffsetFinder::with_scale(float scale) {
  return try_range(offsets_with(scale), [&](float offset) { return if_exact({scale, offset}); });
}

// Differences: with a zero, each value bounds the scale.
ScaleAndOffset OffsetFinder::with_zero(float zero) {
  Range scales{0, kInfinity};
  for (size_t i = 0; i < n_; ++i) {
    const double level = shape_of(half_).round(static_cast<float>(levels_[i] - zero));
    if (level == 0) continue;
    const double a = (values_[i] - errors_[i]) / level, b = (values_[i] + errors_[i]) / level;
    scales.limit(std::min(a, b), std::max(a, b));
  }
  return try_range(scales, [&](float scale) { return if_exact({scale, zero}); });
}

// Zeros are numbers of the precision that libraries multiply out in.
ScaleAndOffset OffsetFinder::with_zeros(double scale) {
  double sum = 0;
  for (size_t i = 0; i < n_; ++i) sum += levels_[i] - values_[i] / scale;
  const Shape shape = shape_of(half_);
  const double likely = shape.round(sum / static_cast<double>(n_));
  ScaleAndOffset found = with_zero(static_cast<float>(likely));
  for (int k = 1; k <= kTries && found.scale == 0 && tries_ != 0; ++k) {
    found = with_zero(static_cast<float>(likely + k * shape.step(likely)));
    if (found.scale == 0) found = with_zero(static_cast<float>(likely - k * shape.step(likely)));
  }
  return found;
}

// The scales that a group may have that is made of the numbers.
Range OffsetFinder::scales_near(const float* values, size_t n, const ScaleAndOffset& numbers) {
  if (!collect(values, n)) return {1, 0};
  for (size_t i = 0; i < n_; ++i) {
    errors_[i] = both_errors_[i] = error_of(precision_, values_[i]);
    levels_[i] = std::nearbyint((double{values_[i]} - numbers.offset) / numbers.scale);
  }
  return scales();
}

// Tries values that have so many levels from the least to the largest.
ScaleAndOffset OffsetFinder::find_with(double levels) {
  const double least = values_[0], range = values_[n_ - 1] - least;
  const Formula formula = kind_.levels.formula;
  for (size_t i = 0; i < n_; ++i) {
    levels_[i] = std::nearbyint((values_[i] - least) / range * levels);
    if (i != 0 && levels_[i] <= levels_[i - 1]) return {};
    both_errors_[i] = errors_[i];
    if (formula == Formula::rounded_sum) both_errors_[i] += error_of(half_, range);
    if (formula == Formula::difference) both_errors_[i] += error_of(half_, values_[i]);
  }
  const Range of_scales = scales();
  if (of_scales.low > of_scales.high) return {};
  // The least value need not have the first level. With roundings between, it matters which it has.
  ScaleAndOffset found;
  const int last = kind_.first + static_cast<int>(kind_.tops.front() - levels);
  for (int first = kind_.first; first <= last && found.scale == 0 && tries_ != 0; ++first) {
    for (size_t i = 0; i < n_; ++i) levels_[i] += first == kind_.first ? first : 1;
    found = formula == Formula::difference
                ? with_zeros((of_scales.low + of_scales.high) / 2)
                : try_range(of_scales, [&](float scale) { return with_scale(scale); });
  }
  return found;
}

ScaleAndOffset OffsetFinder::find(const float* values, size_t n) {
  if (!collect(values, n) || n_ == 0) return {};
  ScaleAndOffset found;
  tries_ = failures_ != 0 ? kManyTries : kFewTries;
  if (n_ == 1) {
    found = of_constant();
  } else {
    // The largest level that two neighbours allow: values near 0 have small errors.
    double gap = kInfinity;
    for (size_t i = 0; i < n_; ++i) errors_[i] = error_of(precision_, values_[i]);
    for (size_t i = 1; i < n_; ++i) {
      const double error = errors_[i] + errors_[i - 1];
      gap = std::min(gap, double{values_[i]} - values_[i - 1] + error);
    }
    const double range = double{values_[n_ - 1]} - values_[0];
    if (range >= kMostScale) return {};
    const double by_gap = std::nearbyint(range / gap);
    // Roundings make a gap smaller or larger than a level.
    for (const double more : {0.0, 1.0, -1.0, 2.0}) {
      const double levels = by_gap + more;
      if (found.scale != 0 || tries_ == 0 || levels < 1 || levels > kind_.tops.front()) continue;
      found = find_with(levels);
    }
  }
  if (found.scale != 0) last_scale_ = found.scale;
  if (found.scale == 0 && tries_ == 0 && failures_ != 0) --failures_;
  return found;
}

}  // namespace bf16codecs::quantized
