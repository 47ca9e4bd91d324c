// Finding the length of rows where callers give none, by the autocorrelation of logarithms of
// magnitudes.

#include <algorithm>

#include "grid/keys.h"
#include "grid/lags.h"
#include "scale/scales.h"

namespace bf16codecs::scale {
namespace {

int mean(const std::vector<int>& values) {
  int64_t sum = 0;
  for (const int value : values) sum += value;
  return static_cast<int>(sum / static_cast<int64_t>(values.size()));
}

// Logarithms of magnitudes in 8ths of an octave, less their mean, and limited: the long tail of
// small numbers would outweigh the rest.
std::vector<int16_t> log_magnitudes(const grid::KeyFormat& format, const uint16_t* keys, size_t n) {
  constexpr int kBelow = 20, kAbove = 60;
  const unsigned shift = format.fraction - std::min(format.fraction, 3u);
  std::vector<int> logs(n);
  for (size_t i = 0; i < n; ++i) logs[i] = keys[i] >> shift;
  const int middle = mean(logs);
  for (int& log : logs) log = std::clamp(log - middle, -kBelow, kAbove);
  const int rest = mean(logs);
  std::vector<int16_t> result(n);
  for (size_t i = 0; i < n; ++i) result[i] = static_cast<int16_t>(logs[i] - rest);
  return result;
}

// A sum of at most 2^15 products of at most 80 x 80, which 32 bits hold.
int32_t product_sum(const int16_t* a, const int16_t* b, size_t n) {
  int32_t sum = 0;
  for (size_t i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

}  // namespace

size_t find_row(const grid::KeyFormat& format, const std::vector<uint16_t>& keys) {
  constexpr size_t kMinItems = 1 << 12, kMost = 1 << 15;
  constexpr int64_t kSigmas = 5;
  if (keys.size() < kMinItems) return 0;

  // Every lag is judged on equally many products, so that one threshold serves all.
  const size_t longest = std::min(keys.size() / 16, kMost);
  const size_t products = std::min(keys.size() / 8, kMost);
  const std::vector<int16_t> logs = log_magnitudes(format, keys.data(), longest + products);
  const int64_t variance = product_sum(logs.data(), logs.data(), products);
  std::vector<int64_t> together;
  for (size_t lag = grid::kLagUnit; lag <= longest; lag += grid::kLagUnit) {
    together.push_back(product_sum(logs.data(), logs.data() + lag, products));
  }
  return grid::first_outstanding(
      together, kSigmas * (variance / grid::root_up(static_cast<int64_t>(products))));
}

}  // namespace bf16codecs::scale
