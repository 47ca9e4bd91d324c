#include "quantized/scales.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "kernels/kernels.h"

namespace bf16codecs::quantized {
namespace {

uint32_t bits_of(float x) {
  return std::bit_cast<uint32_t>(x);
}
float float_of(uint32_t bits) {
  return std::bit_cast<float>(bits);
}

constexpr size_t kStrip = 1024;
// Each pass over a group narrows the interval, until nothing changes.
constexpr unsigned kPasses = 16;
// Where the largest level is known up to this, all values are near one level, and a pass is enough.
constexpr float kClear = 0.1f;
// As many values of bfloat16 tell the level of the largest.
constexpr size_t kTellingValues = 64;
// As many levels are always tried; of more, at most as many in vain.
constexpr size_t kFewTops = 16;
// Numbers of an interval that are tried. Where the rounding is coarse, all are right but for a few
// near the ends; where it is that of binary32, or there are two, some are.
uint32_t tries(Precision precision) {
  const bool is_coarse = precision == Precision::bfloat16 || precision == Precision::binary16;
  return is_coarse ? 8 : 32;
}

}  // namespace

// The bits that its ends have in common (the lower one less 1, so that it may be the number), then
// a one.
float simplest(const Interval& interval) {
  const uint32_t high = bits_of(interval.high), differing = (bits_of(interval.low) - 1) ^ high;
  return float_of(high & ~(std::bit_floor(differing) - 1));
}

float relative_error(Precision precision) {
  switch (precision) {
    case Precision::binary32:
      return 0x1p-23f;
    case Precision::binary16:
      return 0x1p-11f;
    case Precision::bfloat16:
      return 0x1p-8f;
    default:
      return 0x1p-8f + 0x1p-11f;
  }
}

namespace {

// Whether integers, of which `top` is the largest, may all be multiples of the factor. Where they
// are known, asking them saves a search: super-blocks' scales, with 63, took three in vain.
bool may_be_multiples(float factor, float scale, float top, Precision precision,
                      const float* values, size_t n) {
  constexpr float kShift = 12582912;  // 1.5 x 2^23: a sum that has no bits for fractions
  if (top * relative_error(precision) > kClear) return true;
  const float inverse = 1 / (scale * factor);
  for (size_t i = 0; i < n; ++i) {
    const float level = values[i] * inverse;
    const float rest = level - ((level + kShift) - kShift);
    if (std::fabs(rest) * factor > 0.5f) return false;
  }
  return true;
}

}  // namespace

ScaleFinder::ScaleFinder(const Kind& kind, Precision precision, size_t& failures)
    : kind_(kind),
      precision_(precision),
      last_top_(kind.tops.empty() ? 0 : kind.tops.front()),
      failures_(failures) {}

bool ScaleFinder::is_exact(const float* values, size_t n, float scale) const {
  if (!is_within(std::fabs(scale), kLeastScale, kMostScale)) return false;
  float scales[kStrip];
  uint8_t symbols[kStrip], low[kStrip];
  kernels().quantized->fill(scale, std::min(n, kStrip), scales);
  for (size_t i = 0; i < n; i += kStrip) {
    const size_t part = std::min(kStrip, n - i);
    if (!kernels().quantized->quantize(kind_.levels, precision_, values + i, scales, part,
                                       {symbols, low}))
      return false;
  }
  return true;
}

// Which numbers of the interval that is left are right, rounding decides: of those that are tried,
// the simplest comes first.
float ScaleFinder::find_with(float top, const float* values, size_t n, float most) const {
  const QuantizedKernels& kernel = *kernels().quantized;
  const float error = relative_error(precision_), middle = most / top;
  Interval interval{middle * (1 - error), middle * (1 + error)};
  if (!is_within(interval.low, kLeastScale, kMostScale)) return 0;
  const size_t few = std::min(n, kFewValues);
  interval = kernel.narrow(kind_.levels, precision_, values, few, interval);
  for (unsigned pass = 0; pass < kPasses && n > few; ++pass) {
    if (interval.low > interval.high) return 0;
    const Interval before = interval;
    interval = kernel.narrow(kind_.levels, precision_, values, n, interval);
    const bool was_clear = (before.high - before.low) * top < kClear * before.low;
    if (was_clear || (before.low == interval.low && before.high == interval.high)) break;
  }
  if (interval.low > interval.high) return 0;
  const float first = simplest(interval);
  if (is_exact(values, n, first)) return first;
  const uint32_t low = bits_of(interval.low), high = bits_of(interval.high);
  // Where products were rounded to binary16, the scale is likely to be a number of it, too.
  constexpr uint32_t kBinary16 = 1 << 13;
  if (precision_ == Precision::binary16_bfloat16 && (high - low) / kBinary16 < tries(precision_)) {
    for (uint32_t bits = low / kBinary16 * kBinary16; bits <= high; bits += kBinary16) {
      if (is_exact(values, n, float_of(bits))) return float_of(bits);
    }
  }
  const uint32_t step = std::max((high - low) / tries(precision_), 1u);
  for (uint32_t bits = low; bits <= high; bits += step) {
    const float scale = simplest({float_of(bits), float_of(std::min(bits + step - 1, high))});
    if (scale != first && is_exact(values, n, scale)) return scale;
  }
  return 0;
}

// Twice the integers with half the scale are integers, too.
float ScaleFinder::reduced(float scale, float top, const float* values, size_t n,
                           float most) const {
  if (kind_.levels.family != Family::integers) return scale;
  for (const float factor : {2.0f, 3.0f, 5.0f, 7.0f}) {
    while (std::fmod(top, factor) == 0 &&
           may_be_multiples(factor, scale, top, precision_, values, n)) {
      const float larger = find_with(top / factor, values, n, most);
      if (larger == 0) break;
      scale = larger;
      top /= factor;
    }
  }
  return scale;
}

// The usual level, and that with which the values would have a range of as many levels as there are
// with zero points: of 255 levels, each is tried in 40 ns, and a group may have none.
std::vector<float> ScaleFinder::likely_tops(const float* values, size_t n, float most) const {
  const float usual = kind_.tops.front(), levels = 2 * usual + 1;
  const auto [least, largest] = std::minmax_element(values, values + n);
  const float range = std::max(*largest, 0.0f) - std::min(*least, 0.0f);
  const float by_range = std::nearbyint(most / range * levels);
  return {usual, usual + 1, by_range, by_range - 1, by_range + 1};
}

float ScaleFinder::find_with_any(std::span<const float> tops, const float* values, size_t n,
                                 float most) {
  for (const float top : tops) {
    const float scale = top > 0 ? find_with(top, values, n, most) : 0;
    if (scale == 0) continue;
    last_top_ = top;
    return reduced(scale, top, values, n, most);
  }
  return 0;
}

namespace {

// Of `kLevels` levels of the largest magnitude, from `first` on, the first one with which all
// values are near integers; `kLevels` if there is none. `error` is the relative one of a value and
// of the largest together, `least` that of subnormal values.
constexpr unsigned kLevels = 16;
unsigned first_with_integers(const float* values, size_t n, float first, float unit, float error,
                             float least) {
  constexpr float kShift = 12582912;  // 1.5 x 2^23: a sum that has no bits for fractions
  float inverses[kLevels], off[kLevels] = {};
  for (unsigned t = 0; t < kLevels; ++t) inverses[t] = (first + static_cast<float>(t)) * unit;
  for (size_t i = 0; i < n; ++i) {
    const float magnitude = std::fabs(values[i]), most = magnitude * error + least;
    float nearest = 1;
    for (unsigned t = 0; t < kLevels; ++t) {
      const float x = magnitude * inverses[t];
      const float rest = std::fabs(x - ((x + kShift) - kShift)) - most * inverses[t];
      off[t] = std::max(off[t], rest);
    }
    for (unsigned t = 0; t < kLevels; ++t) nearest = std::min(nearest, off[t]);
    if (nearest > 0) return kLevels;
  }
  return static_cast<unsigned>(std::find(off, off + kLevels, 0.0f) - off);
}

}  // namespace

// By the level of the smallest magnitude: of 16 Gaussian values in 255 levels, it is above 16 in 1
// of 2000 cases, while that of the largest one may be any.
float ScaleFinder::find_by_least(const float* values, size_t n, float most) {
  constexpr float kMostLeast = 16;
  float least = most;
  for (size_t i = 0; i < n; ++i) {
    const float magnitude = std::fabs(values[i]);
    least = magnitude > 0 && magnitude < least ? magnitude : least;
  }
  const float ratio = most / least, levels = static_cast<float>(16 << kind_.levels.low_bits);
  for (float level = 1; level <= kMostLeast && ratio * level < levels; ++level) {
    const float scale = find_with_any({&level, 1}, values, n, least);
    if (scale == 0) continue;
    last_top_ = std::nearbyint(most / scale);
    return scale;
  }
  return 0;
}

// By every level of the largest magnitude: some values refuse nearly all that are wrong. A few
// coarse ones do not.
float ScaleFinder::find_by_all(const float* values, size_t n, float most) {
  const float levels = static_cast<float>(16 << kind_.levels.low_bits);
  const float error = 2.5f * relative_error(precision_);
  const size_t few = std::min(n, kFewValues);
  const bool has_subnormals =
      precision_ != Precision::binary32 && precision_ != Precision::bfloat16;
  const float least = has_subnormals ? 0x1p-24f : 0;
  unsigned left = kFewTops;
  float top = 1;
  while (top < levels && left != 0) {
    const unsigned skipped = first_with_integers(values, few, top, 1 / most, error, least);
    top += static_cast<float>(skipped);
    if (skipped == kLevels || top >= levels) continue;
    const float scale = find_with_any({&top, 1}, values, n, most);
    if (scale != 0) return scale;
    ++top, --left;
  }
  return left == 0 ? find_by_least(values, n, most) : 0;
}

float ScaleFinder::find(const float* values, size_t n, bool is_whole) {
  if (kind_.fixed_scale != 0) {
    return is_exact(values, n, kind_.fixed_scale) ? kind_.fixed_scale : 0;
  }
  const Magnitudes magnitudes = kernels().quantized->magnitudes(values, n);
  const float most = float_of(magnitudes.most);
  if (!std::isfinite(most)) return 0;
  if (most == 0) return is_exact(values, n, last_scale_) ? last_scale_ : 0;
  float scale = find_with_any({&last_top_, 1}, values, n, most);
  const bool has_many = kind_.levels.family == Family::integers && kind_.tops.size() > kFewTops;
  // Of numbers as coarse as bfloat16's or subnormal ones, small groups have wrong scales by chance.
  const bool are_exact =
      precision_ == Precision::binary32 || (precision_ == Precision::binary16 && most >= 0x1p-14f);
  const bool is_only_likely = has_many && !are_exact && is_whole && n < kTellingValues;
  if (scale == 0 && has_many && (is_only_likely || failures_ == 0)) {
    scale = find_with_any(likely_tops(values, n, most), values, n, most);
  } else if (scale == 0 && failures_ != 0) {
    scale = has_many ? find_by_all(values, n, most) : find_with_any(kind_.tops, values, n, most);
    if (scale == 0 && has_many) --failures_;
  }
  if (scale == 0) return 0;
  // Integers have no -0: it comes from a scale that is negative.
  const bool is_negative =
      kind_.levels.family == Family::integers && magnitudes.negative_zeros > magnitudes.zeros / 2;
  last_scale_ = is_negative && is_exact(values, n, -scale) ? -scale : scale;
  return last_scale_;
}

}  // namespace bf16codecs::quantized
