// Estimating the scales of columns, by sums of magnitudes down the columns.

#include <algorithm>

#include "tiles/fit.h"
#include "tiles/magnitudes.h"

namespace bf16codecs::tiles {
namespace {

// The weight that makes the mean magnitude of a row 1, or 0 if all of its magnitudes are 0. The
// row's first items are enough: if they lie in small columns, they do so in all rows.
float row_weight(const Magnitudes& magnitudes, const std::vector<uint16_t>& keys) {
  constexpr size_t kEnough = 512;
  constexpr float kMost = 64;
  size_t n = std::min(kEnough, keys.size());
  uint64_t sum = magnitudes.sum(keys.data(), n, nullptr).sum;
  if (sum == 0) sum = magnitudes.sum(keys.data(), n = keys.size(), nullptr).sum;
  if (sum == 0) return 0;
  const float mean = static_cast<float>(sum) / static_cast<float>(n);
  return std::clamp(Magnitudes::kUnit / mean, 1 / kMost, kMost);
}

// The sums of magnitudes of each column over some rows, each row times its weight.
struct Sums {
  std::vector<uint64_t> of_column;
  size_t rows = 0;
  float weights = 0;
};

Sums sum_columns(const Magnitudes& magnitudes, const Items& items, uint64_t begin, size_t row,
                 size_t rows) {
  constexpr size_t kMaxRows = 1024;
  const size_t stride = (rows + kMaxRows - 1) / kMaxRows;
  std::vector<uint16_t> keys(row);
  std::vector<uint32_t> part(row);
  Sums sums{std::vector<uint64_t>(row)};
  const auto flush = [&] {
    for (size_t j = 0; j < row; ++j) sums.of_column[j] += part[j];
    std::fill(part.begin(), part.end(), 0);
  };
  for (size_t r = 0; r < rows; r += stride) {
    items.load(begin + row * r, row, keys.data());
    const float weight = row_weight(magnitudes, keys);
    if (weight == 0) continue;
    magnitudes.add_to(keys.data(), row, weight, part.data());
    sums.weights += weight;
    if (++sums.rows % Magnitudes::kMaxAdded == 0) flush();
  }
  flush();
  return sums;
}

// The keys of the column that begins with this item, in rows that are spread evenly.
std::vector<uint16_t> some_of_column(const Items& items, uint64_t begin, size_t row, size_t rows) {
  constexpr size_t kEnough = 256;
  std::vector<uint16_t> keys(std::min(rows, kEnough));
  for (size_t r = 0; r < keys.size(); ++r) {
    items.load(begin + row * (rows * r / keys.size()), 1, &keys[r]);
  }
  return keys;
}

}  // namespace

grid::Scales column_scales(const grid::KeyFormat& format, const Magnitudes& magnitudes,
                           const Items& items, uint64_t begin, size_t row, size_t rows) {
  const Sums sums = sum_columns(magnitudes, items, begin, row, rows);
  const float mean_weight = sums.rows == 0 ? 1 : sums.weights / static_cast<float>(sums.rows);
  grid::Scales scales{std::vector<int>(row), std::vector<uint64_t>(row, rows)};
  for (size_t j = 0; j < row; ++j) {
    if (sums.of_column[j] != 0) {
      scales.log_scale[j] = magnitudes.log_scale(sums.of_column[j], sums.rows);
      continue;
    }
    const std::vector<uint16_t> keys = some_of_column(items, begin + j, row, rows);
    if (std::all_of(keys.begin(), keys.end(), [](uint16_t key) { return key <= 1; })) {
      scales.count[j] = 0;
    } else {
      scales.log_scale[j] = faint_scale(format, keys) + log_weight(mean_weight);
    }
  }
  return scales;
}

}  // namespace bf16codecs::tiles
