#include "quantized/super_blocks.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/kernels.h"
#include "quantized/groups.h"
#include "quantized/kinds.h"
#include "quantized/shape.h"

namespace bf16codecs::quantized {
namespace {

constexpr size_t kItems = 256, kMostGroups = 16;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Puts an integer times one number of binary16 into each range, of which one is the largest
// integer, as llama.cpp chooses them. Returns false if there is no such number.
bool fit(const Range* ranges, size_t n, double most, float* numbers) {
  const auto middle = [](const Range& range) { return (range.low + range.high) / 2; };
  const Range* largest = nullptr;
  for (size_t i = 0; i < n; ++i) {
    const bool is_any = ranges[i].low == -kInfinity || ranges[i].high == kInfinity;
    if (is_any) continue;
    if (largest == nullptr || std::fabs(middle(ranges[i])) > std::fabs(middle(*largest)))
      largest = ranges + i;
  }
  if (largest == nullptr || middle(*largest) == 0) return false;
  const double sign = middle(*largest) < 0 ? -1 : 1;
  const double a = std::fabs(largest->low) / most, b = std::fabs(largest->high) / most;
  const double low = std::min(a, b), high = std::max(a, b);
  const double step = shape_of(Precision::binary16).step(high);
  constexpr double kMostTried = 16;
  if ((high - low) / step > kMostTried) return false;
  for (double unit = std::ceil(low / step) * step; unit <= high; unit += step) {
    bool is_fit = unit > 0;
    for (size_t i = 0; i < n && is_fit; ++i) {
      const double integer = std::nearbyint(middle(ranges[i]) / unit * sign);
      const bool is_any = ranges[i].low == -kInfinity || ranges[i].high == kInfinity;
      numbers[i] = static_cast<float>(is_any ? unit * sign : integer * unit * sign);
      is_fit = is_any || (numbers[i] >= ranges[i].low && numbers[i] <= ranges[i].high);
    }
    if (is_fit) return true;
  }
  return false;
}

class SuperBlocks {
 public:
  SuperBlocks(const Kind& kind, Precision precision, const InnerKind& inner)
      : kind_(kind),
        precision_(precision),
        groups_(inner.width),
        size_(kItems / inner.width),
        most_(inner.kind.tops.front()),
        finders_(kind.has_offsets() ? groups_ : 0, OffsetFinder(kind, precision, 0)) {}

  // Of the 256 items at `values`; returns false, and changes nothing, if the numbers don't fit.
  bool replace(const float* values, float* scales, float* offsets) {
    if (std::count(scales, scales + groups_, 0.0f) != 0) return false;
    return kind_.has_offsets() ? replace_both(values, scales, offsets)
                               : replace_scales(values, scales);
  }

 private:
  bool replace_scales(const float* values, float* scales) const {
    const QuantizedKernels& kernel = *kernels().quantized;
    constexpr float kLess = 1 - 0x1p-7f, kMore = 1 + 0x1p-7f;
    Range ranges[kMostGroups] = {};
    for (size_t g = 0; g < groups_; ++g) {
      const float scale = std::fabs(scales[g]);
      const Interval left = kernel.narrow(kind_.levels, precision_, values + g * size_, size_,
                                          {scale * kLess, scale * kMore});
      ranges[g] = {left.low, left.high};
    }
    float found[kMostGroups], item_scales[kItems];
    uint8_t symbols[kItems], low[kItems];
    if (!fit(ranges, groups_, most_, found)) return false;
    for (size_t g = 0; g < groups_; ++g) {
      if (found[g] == 0) return false;
      found[g] = std::copysign(found[g], scales[g]);
      std::fill_n(item_scales + g * size_, size_, found[g]);
    }
    if (!kernel.quantize(kind_.levels, precision_, values, item_scales, kItems, {symbols, low}))
      return false;
    std::copy_n(found, groups_, scales);
    return true;
  }

  bool replace_both(const float* values, float* scales, float* offsets) {
    Range ranges[kMostGroups] = {};
    float found[kMostGroups], found_offsets[kMostGroups];
    for (size_t g = 0; g < groups_; ++g)
      ranges[g] = finders_[g].scales_near(values + g * size_, size_, {scales[g], offsets[g]});
    if (!fit(ranges, groups_, most_, found)) return false;
    for (size_t g = 0; g < groups_; ++g) {
      ranges[g] = finders_[g].offsets_with(found[g]);
      if (found[g] == 0 || ranges[g].low > ranges[g].high) return false;
    }
    if (!fit(ranges, groups_, most_, found_offsets)) return false;
    for (size_t g = 0; g < groups_; ++g) {
      if (finders_[g].if_exact({found[g], found_offsets[g]}).scale == 0) return false;
    }
    std::copy_n(found, groups_, scales);
    std::copy_n(found_offsets, groups_, offsets);
    return true;
  }

  const Kind& kind_;
  Precision precision_;
  size_t groups_, size_;  // groups of a super-block, and items of a group
  double most_;           // the largest integer
  std::vector<OffsetFinder> finders_;
};

// The first few tell whether there are any.
constexpr size_t kFirst = 8;

// Whether the scales of the first groups differ: powers of two, as MXFP4 has, take fewer bits as
// they are.
bool do_differ(const float* scales, size_t n) {
  std::vector<float> sorted(scales, scales + n);
  std::sort(sorted.begin(), sorted.end());
  const auto distinct = std::unique(sorted.begin(), sorted.end()) - sorted.begin();
  return 4 * static_cast<size_t>(distinct) > n;
}

bool may_have_super_blocks(const Found& found, Precision precision, uint64_t first) {
  const Groups& groups = found.grid.groups;
  const Formula formula = found.kind.levels.formula;
  return (formula == Formula::product || formula == Formula::sum) &&
         precision != Precision::binary32 && groups.height == 1 && first % kItems == 0 &&
         (groups.row % kItems == 0 || groups.row == groups.width);
}

}  // namespace

void find_super_blocks(const Found& found, Precision precision, uint64_t first, const float* values,
                       size_t n, float* scales, float* offsets) {
  if (!may_have_super_blocks(found, precision, first)) return;
  for (const InnerKind& inner : inner_kinds()) {
    if (uint64_t{inner.width} * found.grid.groups.width != kItems) continue;
    SuperBlocks super_blocks(found.kind, precision, inner);
    const size_t count = n / kItems, width = inner.width;
    if (!do_differ(scales, std::min(count, kFirst) * width)) return;
    size_t replaced = 0;
    for (size_t k = 0; k < count; ++k) {
      float* const of_scales = scales + k * width;
      replaced += super_blocks.replace(values + k * kItems, of_scales, offsets + k * width) ? 1 : 0;
      if (k + 1 == kFirst && 2 * replaced < kFirst) break;
    }
    if (replaced != 0) return;
  }
}

}  // namespace bf16codecs::quantized
