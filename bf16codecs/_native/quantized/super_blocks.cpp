#include "quantized/super_blocks.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/kernels.h"
#include "quantized/codes.h"
#include "quantized/offsets.h"
#include "quantized/shape.h"
#include "quantized/values.h"

namespace bf16codecs::quantized {
namespace {

// Whether a group may have any number.
bool is_any(const Range& range) {
  return range.high == std::numeric_limits<double>::infinity();
}

// The nearest integer of |x| < 2^51, ties to even: a sum that has no bits for fractions. Compilers
// call a function of libm for others.
double to_integer(double x) {
  constexpr double kShift = 0x1.8p52;
  return (x + kShift) - kShift;
}

// Offsets are negative.
Range magnitude_of(const Range& range) {
  if (is_any(range)) return {0, 0};
  return {std::min(std::fabs(range.low), std::fabs(range.high)),
          std::max(std::fabs(range.low), std::fabs(range.high))};
}

// Finds numbers, one in each range, that are integers times one number of binary16 and that
// `accepts` returns true for.
template <typename Function>
bool fit(const Range* ranges, size_t n, double most, float* numbers, Function accepts) {
  Units units(ranges, n, most);
  while (units.next(numbers)) {
    if (accepts()) return true;
  }
  return false;
}

class SuperBlocks {
 public:
  SuperBlocks(const Kind& kind, Precision precision, const InnerKind& inner)
      : kind_(kind),
        precision_(precision),
        groups_(inner.width),
        size_(kSuperBlockItems / inner.width),
        most_(inner.kind.tops.front()),
        finders_(kind.has_offsets() ? groups_ : 0, OffsetFinder(kind, precision, failures_)) {}

  // Of 256 values; returns false, and changes nothing, if the numbers don't fit.
  bool replace(const float* values, float* scales, float* offsets, const LevelCodes& codes) {
    if (std::count(scales, scales + groups_, 0.0f) != 0) return false;
    const bool is_replaced = kind_.has_offsets() ? replace_both(values, scales, offsets)
                                                 : replace_scales(values, scales);
    return is_replaced && quantize(values, scales, offsets, codes);
  }

 private:
  // Finds the codes; returns whether all values have one.
  bool quantize(const float* values, const float* scales, const float* offsets,
                const LevelCodes& codes) const {
    float of_scales[kSuperBlockItems], of_offsets[kSuperBlockItems];
    for (size_t i = 0; i < kSuperBlockItems; ++i) {
      of_scales[i] = scales[i / size_];
      of_offsets[i] = kind_.has_offsets() ? offsets[i / size_] : 0;
    }
    return quantize_values(kind_.levels, precision_, values, of_scales, of_offsets,
                           kSuperBlockItems, codes);
  }

  bool replace_scales(const float* values, float* scales) const {
    const QuantizedKernels& kernel = *kernels().quantized;
    constexpr float kLess = 1 - 0x1p-7f, kMore = 1 + 0x1p-7f;
    Range ranges[kSuperBlockGroups] = {};
    for (size_t g = 0; g < groups_; ++g) {
      const float scale = std::fabs(scales[g]);
      const Interval left = kernel.narrow(kind_.levels, precision_, values + g * size_, size_,
                                          {scale * kLess, scale * kMore});
      ranges[g] = {left.low, left.high};
    }
    float found[kSuperBlockGroups];
    const auto is_exact = [&] {
      uint8_t symbols[kSuperBlockItems], low[kSuperBlockItems];
      for (size_t g = 0; g < groups_; ++g) {
        if (!are_within(Formula::product, found[g], 0)) return false;
        found[g] = std::copysign(found[g], scales[g]);
      }
      return quantize(values, found, nullptr, {symbols, low});
    };
    if (!fit(ranges, groups_, most_, found, is_exact)) return false;
    std::copy_n(found, groups_, scales);
    return true;
  }

  bool replace_both(const float* values, float* scales, float* offsets) {
    Range ranges[kSuperBlockGroups] = {}, of_offsets[kSuperBlockGroups] = {};
    float found[kSuperBlockGroups], found_offsets[kSuperBlockGroups];
    for (size_t g = 0; g < groups_; ++g)
      ranges[g] = finders_[g].scales_near(values + g * size_, size_, {scales[g], offsets[g]});
    const auto is_exact = [&] {
      for (size_t g = 0; g < groups_; ++g) {
        if (finders_[g].if_exact({found[g], found_offsets[g]}).scale == 0) return false;
      }
      return true;
    };
    const auto has_offsets = [&] {
      for (size_t g = 0; g < groups_; ++g) {
        of_offsets[g] = finders_[g].offsets_with(found[g]);
        if (found[g] == 0 || of_offsets[g].low > of_offsets[g].high) return false;
      }
      return fit(of_offsets, groups_, most_, found_offsets, is_exact);
    };
    if (!fit(ranges, groups_, most_, found, has_offsets)) return false;
    std::copy_n(found, groups_, scales);
    std::copy_n(found_offsets, groups_, offsets);
    return true;
  }

  const Kind& kind_;
  Precision precision_;
  size_t groups_, size_;  // groups of a super-block, and items of a group
  double most_;           // the largest integer
  size_t failures_ = 0;
  std::vector<OffsetFinder> finders_;
};

// The first few tell whether there are any.
constexpr size_t kFirst = 8;

// Returns how many of the super-blocks of a kind there are.
size_t replace_all(const Found& found, const InnerKind& inner, Precision precision,
                   const Block& block, const std::vector<bool>& done, float* scales, float* offsets,
                   Codes& codes) {
  SuperBlocks super_blocks(found.kind, precision, inner);
  const size_t count = block.n / kSuperBlockItems, width = inner.width,
               size = block.layout.planes() * kSuperBlockItems;
  size_t replaced = 0, at = 0;  // of the next code
  for (size_t k = 0; k < count; ++k, scales += width) {
    const bool is_done = k < done.size() && done[k];
    float values[kSuperBlockItems];
    if (!is_done) load_values(block.layout, block.items + size * k, kSuperBlockItems, values);
    const LevelCodes of_block{codes.symbols + at, codes.low + at};
    float* const of_offsets = found.kind.has_offsets() ? offsets + k * width : nullptr;
    replaced += is_done || super_blocks.replace(values, scales, of_offsets, of_block) ? 1 : 0;
    at += kSuperBlockItems -
          found.grid.groups.width * static_cast<size_t>(std::count(scales, scales + width, 0.0f));
    if (k + 1 == kFirst && 2 * replaced < kFirst) break;
  }
  return replaced;
}

}  // namespace

Units::Units(const Range* ranges, size_t n, double most) : n_(n), most_(most) {
  Range largest;
  for (size_t i = 0; i < n; ++i) {
    ranges_[i] = ranges[i];
    if (ranges[i].low > ranges[i].high) return;
    const Range of_group = magnitude_of(ranges[i]);
    if (of_group.low + of_group.high > largest.low + largest.high) largest = of_group;
  }
  constexpr int kMostUnits = 16;
  left_ = kMostUnits;
  end_ = largest.high;
  step_ = shape_of(Precision::binary16).step(largest.high / most);
  unit_ = std::max(std::ceil(largest.low / most / step_), 1.0) * step_;
}

// Puts an integer times the unit into each range; returns false if there is none.
bool Units::fit(float* numbers) const {
  const double inverse = 1 / unit_;
  for (size_t i = 0; i < n_; ++i) {
    const Range& range = ranges_[i];
    const double middle = (range.low + range.high) / 2;
    const double number = is_any(range) ? unit_ : to_integer(middle * inverse) * unit_;
    numbers[i] = static_cast<float>(number);
    if (numbers[i] < range.low || numbers[i] > range.high) return false;
  }
  return true;
}

bool Units::next(float* numbers) {
  for (; left_ != 0 && unit_ * most_ <= end_; --left_) {
    const bool is_found = fit(numbers);
    unit_ += step_;
    if (!is_found) continue;
    --left_;
    return true;
  }
  left_ = 0;
  return false;
}

bool do_differ(const float* scales, size_t n) {
  std::vector<float> sorted(scales, scales + n);
  std::sort(sorted.begin(), sorted.end());
  const auto distinct = std::unique(sorted.begin(), sorted.end()) - sorted.begin();
  return 4 * static_cast<size_t>(distinct) > n;
}

std::vector<InnerKind> inner_kinds_of(const Kind& kind, Precision precision, const Block& block) {
  const Groups& groups = block.groups;
  const Formula formula = kind.levels.formula;
  // Products' scales are found exactly in binary32.
  const bool is_product = formula == Formula::product && precision != Precision::binary32;
  // Groups follow each other, without regard to rows.
  const bool is_possible = (is_product || formula == Formula::sum) && groups.height == 1 &&
                           groups.row == groups.width && block.first % kSuperBlockItems == 0;
  std::vector<InnerKind> kinds;
  for (const InnerKind& inner : inner_kinds()) {
    if (is_possible && uint64_t{inner.width} * groups.width == kSuperBlockItems)
      kinds.push_back(inner);
  }
  return kinds;
}

void find_super_blocks(const Found& found, Precision precision, const Block& block,
                       const std::vector<bool>& done, float* scales, float* offsets, Codes& codes) {
  const size_t count = block.n / kSuperBlockItems;
  if (count != 0 && done.size() == count &&
      std::find(done.begin(), done.end(), false) == done.end())
    return;
  for (const InnerKind& inner : inner_kinds_of(found.kind, precision, block)) {
    if (!do_differ(scales, std::min(count, kFirst) * inner.width)) return;
    if (replace_all(found, inner, precision, block, done, scales, offsets, codes) != 0) return;
  }
}

}  // namespace bf16codecs::quantized
