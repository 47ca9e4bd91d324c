// Finding the length of rows where callers give none: items of one column are large together. Bits
// instead of products of logarithms take 0.1 ms instead of 1 (docs/design_codecs.md, "Tiles").

#include <algorithm>
#include <numeric>
#include <vector>

#include "grid/lags.h"
#include "kernels/kernels.h"
#include "tiles/fit.h"

namespace bf16codecs::tiles {
namespace {

constexpr size_t kWordBits = 64;

// A bit for each item: whether it is larger than the mean of the 64 around it, so that the scales
// of rows do not hide those of columns. A word of zeros follows the bits. n is a multiple of 64.
std::vector<uint8_t> large_items(const Items& items, size_t n) {
  std::vector<uint8_t> bits(n / 8 + kWordBits / 8);
  for (size_t at = 0; at < n; at += kWordBits) {
    uint16_t keys[kWordBits];
    items.load(at, kWordBits, keys);
    const auto mean = std::accumulate(keys, keys + kWordBits, 0u) / kWordBits;
    // Bit by bit of all bytes, which compilers make vectors of.
    uint8_t* const bytes = bits.data() + at / 8;
    for (size_t bit = 0; bit < 8; ++bit) {
      for (size_t i = 0; i < kWordBits / 8; ++i) {
        bytes[i] = static_cast<uint8_t>(bytes[i] | (keys[8 * i + bit] > mean) << bit);
      }
    }
  }
  return bits;
}

}  // namespace

size_t find_row(const Items& items, size_t n) {
  constexpr size_t kMinItems = 1 << 12, kMaxLag = 1 << 15, kMaxProducts = 1 << 16;
  if (n < kMinItems) return 0;
  const size_t longest = std::min(n / 16, kMaxLag) / kWordBits * kWordBits;
  const size_t products = std::min(n / 8, kMaxProducts) / kWordBits * kWordBits;
  const std::vector<uint8_t> bits = large_items(items, longest + products);
  std::vector<int64_t> together;
  for (size_t lag = grid::kLagUnit; lag <= longest; lag += grid::kLagUnit) {
    const size_t differing =
        kernels().differing_bits(bits.data(), bits.data() + lag / 8, products / kWordBits);
    together.push_back(static_cast<int64_t>(products) - 2 * static_cast<int64_t>(differing));
  }
  // Chance agreement has a standard deviation of the root of the number of products.
  constexpr int64_t kSigmas = 5;
  return grid::first_outstanding(together, kSigmas * grid::root_up(static_cast<int64_t>(products)));
}

}  // namespace bf16codecs::tiles
