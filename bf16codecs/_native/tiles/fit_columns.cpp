// Estimating the scales of columns, by sums of magnitudes down the columns.

#include <algorithm>

#include "threads/lock.h"
#include "threads/pool.h"
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

// A sample of a section's rows. Each of several threads adds up a part of it.
class RowSample {
 public:
  RowSample(const Magnitudes& magnitudes, const Items& items, uint64_t begin, size_t row,
            size_t rows)
      : magnitudes_(magnitudes), items_(items), begin_(begin), row_(row) {
    constexpr size_t kMaxRows = 1024;
    stride_ = (rows + kMaxRows - 1) / kMaxRows;
    weights_.resize((rows + stride_ - 1) / stride_);
  }

  Sums sum() {
    constexpr size_t kPartItems = size_t{1} << 16;  // waking a thread takes as long as 2^14
    const size_t n = weights_.size(), large_parts = std::max<size_t>(1, n * row_ / kPartItems);
    const size_t parts = std::min<size_t>({n, large_parts, get_num_threads()});
    Sums sums{std::vector<uint64_t>(row_)};
    Mutex mutex;
    parallel_for(parts, [&](size_t i, Workspace&) {
      const std::vector<uint64_t> of_column = sum_part(n * i / parts, n * (i + 1) / parts);
      const Lock lock(mutex);
      for (size_t j = 0; j < row_; ++j) sums.of_column[j] += of_column[j];
    });
    // In their order, whichever thread found them: a sum of floats depends on it.
    for (const float weight : weights_) sums.weights += weight, sums.rows += weight != 0;
    return sums;
  }

 private:
  // Adds up rows [first, last) of the sample, and stores their weights.
  std::vector<uint64_t> sum_part(size_t first, size_t last) {
    std::vector<uint16_t> keys(row_);
    std::vector<uint32_t> part(row_);
    std::vector<uint64_t> sums(row_);
    const auto flush = [&] {
      for (size_t j = 0; j < row_; ++j) sums[j] += part[j];
      std::fill(part.begin(), part.end(), 0);
    };
    size_t added = 0;
    for (size_t r = first; r < last; ++r) {
      items_.load(begin_ + row_ * stride_ * r, row_, keys.data());
      weights_[r] = row_weight(magnitudes_, keys);
      if (weights_[r] == 0) continue;
      magnitudes_.add_to(keys.data(), row_, weights_[r], part.data());
      if (++added % Magnitudes::kMaxAdded == 0) flush();
    }
    flush();
    return sums;
  }

  const Magnitudes& magnitudes_;
  const Items& items_;
  const uint64_t begin_;
  const size_t row_;
  size_t stride_;
  std::vector<float> weights_;  // of the rows; 0 for those that are not added
};

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
  const Sums sums = RowSample(magnitudes, items, begin, row, rows).sum();
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
