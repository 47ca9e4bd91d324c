#include "block/estimate.h"

#include <algorithm>

#include "histogram.h"
#include "planes.h"
#include "rans/frequencies.h"
#include "rans/rans.h"

namespace bf16codecs {
namespace {

// Splits items to the beginnings of the planes: samples of consecutive ones, or all if `samples` is
// 0 or they would be half of all. Returns how many items were split.
size_t split_samples(const Layout& layout, const uint8_t* items, size_t n, size_t samples,
                     uint8_t* const planes[]) {
  constexpr size_t kSampleItems = 64;
  if (samples == 0 || n < 2 * samples * kSampleItems) {
    split_planes(layout, items, n, planes);
    return n;
  }
  const size_t width = layout.planes(), part = n / samples;
  for (size_t r = 0; r < samples; ++r) {
    uint8_t* at[kMaxItemSize];
    for (size_t p = 0; p < width; ++p) at[p] = planes[p] + kSampleItems * r;
    // Somewhere in its part of the block: samples at equal distances would meet the same columns
    // again and again.
    const size_t offset =
        (static_cast<uint32_t>(r * 2654435769u) >> 12) % (part - kSampleItems + 1);
    split_planes(layout, items + (part * r + offset) * width, kSampleItems, at);
  }
  return samples * kSampleItems;
}

}  // namespace

size_t size_alone(const Layout& layout, const uint8_t* items, size_t n, size_t first_planes,
                  size_t samples, uint8_t* const planes[]) {
  const size_t counted = split_samples(layout, items, n, samples, planes);
  const size_t states = sizeof(uint32_t) * kLanesPerGroup << groups_log2(n);
  size_t size = 0;
  for (size_t p = 0; p < first_planes; ++p) {
    uint32_t counts[256];
    histogram(planes[p], counted, counts);
    const uint64_t bits = entropy_size(counts) / counted * n;
    size += bits == 0 ? 1 : std::min(n, static_cast<size_t>(bits >> 19) + states);
  }
  return size;
}

size_t size_sparse(const Layout& layout, const uint8_t* items, size_t n, uint8_t* const planes[]) {
  const size_t counted = split_samples(layout, items, n, 64, planes);
  uint64_t bits = 0;
  for (size_t p = 0; p < layout.planes(); ++p) {
    uint32_t counts[256] = {};
    for (size_t i = 0; i < counted; ++i) {
      const bool has_symbol = p == 0 || planes[0][i] != 0;
      counts[planes[p][i]] += has_symbol ? 1 : 0;
    }
    if (p == 0 && 8 * counts[0] < counted) return 0;
    bits += entropy_size(counts) / counted * n;
  }
  return static_cast<size_t>(bits >> 19);
}

}  // namespace bf16codecs
