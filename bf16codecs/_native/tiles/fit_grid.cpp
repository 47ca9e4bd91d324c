// Fitting a section's grid: whether its rows and columns have scales of their own, and in which
// steps.

#include <algorithm>

#include "grid/classes.h"
#include "grid/fixed_point.h"
#include "tiles/fit.h"
#include "tiles/magnitudes.h"

namespace bf16codecs::tiles {
namespace {

using grid::Grid;
using grid::kOctave;
using grid::kScaleUnit;

// By how much the gain of a class of an estimated scale is overrated, in 4096ths of a bit: means of
// magnitudes are not quite the scales that code these items best.
constexpr uint64_t kOverrated = kOctave / 4;

class GridFit {
 public:
  GridFit(const grid::KeyFormat& format, const Items& items, uint64_t first, size_t n)
      : format_(format),
        items_(items),
        first_(first),
        n_(n),
        exponent_(sampled_exponent()),
        magnitudes_(format, exponent_) {}

  FittedGrid fit(size_t row, const Grid* before) {
    constexpr size_t kMinRows = 4;
    grid_.row_length = grid::choose_row_length(row);
    if (row >= grid::kMinRow && row <= n_ / kMinRows) fit_columns(row, before);
    fit_rows();
    return {std::move(grid_), zeros_};
  }

 private:
  int sampled_exponent() const {
    constexpr size_t kPieces = 32, kPiece = 128;
    std::vector<uint16_t> keys(std::min(n_, kPieces * kPiece));
    if (n_ <= keys.size()) {
      items_.load(first_, n_, keys.data());
    } else {
      for (size_t i = 0; i < kPieces; ++i) {
        items_.load(first_ + n_ / kPieces * i, kPiece, keys.data() + kPiece * i);
      }
    }
    return typical_exponent(format_, keys.data(), keys.size());
  }

  // Finds column scales, given row scales found without them (every row has the same columns, so
  // that does not bias them), and keeps them where they pay.
  void fit_columns(size_t row, const Grid* before) {
    const uint64_t begin = (first_ + row - 1) / row * row;
    const size_t rows = static_cast<size_t>((first_ + n_ - begin) / row);
    if (rows == 0) return;
    const grid::Scales columns = column_scales(format_, magnitudes_, items_, begin, row, rows);
    const bool has_zeros =
        std::find(columns.count.begin(), columns.count.end(), 0u) != columns.count.end();
    const int center = typical_log_scale(columns);
    const uint64_t one = grid::cost_of_one(columns, center);
    // Classes of a step that is as fine as the estimates leave 0.7 bits a column, and take some.
    if (!has_zeros && one <= uint64_t{kOctave} * row) return;
    const uint8_t step = class_step(rows);
    std::vector<int16_t> classes;
    const uint64_t cost = grid::choose_classes(columns, center, kScaleUnit << step, classes);
    if (!has_zeros && cost + kOverrated * row >= one) return;
    grid_.period = static_cast<uint32_t>(row);
    grid_.column_step = step;
    grid_.columns = std::move(classes);
    sink_zeros(columns, format_.max_scale(), step, grid_.columns);
    grid_.columns_change = before != nullptr && changes_are_smaller(*before);
  }

  bool changes_are_smaller(const Grid& before) const {
    if (before.period != grid_.period) return false;
    int64_t gain = 0;
    for (size_t i = 0; i < grid_.columns.size(); ++i) {
      gain += std::abs(grid_.columns[i]) - std::abs(grid_.columns[i] - before.columns[i]);
    }
    return gain > 0;
  }

  // The mean of the scales that are not far from the section's exponent. Some faint rows or columns
  // would pull the mean of all of them out of reach of the others' magnitudes.
  int typical_log_scale(const grid::Scales& scales) const {
    constexpr int kFar = 8 * kOctave;
    grid::Scales near = scales;
    for (size_t i = 0; i < near.count.size(); ++i) {
      if (std::abs(near.log_scale[i] - exponent_ * kOctave) > kFar) near.count[i] = 0;
    }
    const bool is_any = std::any_of(near.count.begin(), near.count.end(), [](auto n) { return n; });
    return grid::mean_log_scale(is_any ? near : scales);
  }

  // With steps of a quarter of an octave or more, all scales have the same place in the quarter of
  // their table class. It is moved to the middle: an end would cost up to 0.007 bits.
  int aligned(int base) const {
    const bool has_fine_columns = grid_.period != 0 && grid_.column_step < 2;
    if (grid_.row_step < 2 || has_fine_columns) return base;
    return base / 4 * 4 + std::clamp(base % 4, 1, 2);
  }

  // Finds the base and the step of the rows, from some of them, and whether scales of rows pay.
  void fit_rows() {
    constexpr size_t kMaxRows = 64;
    const RowFit fit(format_, grid_, exponent_);
    const size_t length = grid_.row_length;
    const uint64_t begin = (first_ + length - 1) / length * length;
    const size_t rows =
        begin < first_ + n_ ? static_cast<size_t>((first_ + n_ - begin) / length) : 0;
    grid::Scales scales;
    const auto add = [&](uint64_t first, size_t n) {
      const grid::Scales some = fit.estimate(items_, first, n);
      scales.log_scale.insert(scales.log_scale.end(), some.log_scale.begin(), some.log_scale.end());
      scales.count.insert(scales.count.end(), some.count.begin(), some.count.end());
    };
    const size_t stride = rows / kMaxRows + 1;
    for (size_t r = 0; r < rows; r += stride) add(begin + length * r, length);
    if (rows == 0) add(first_, n_);
    const int mean = typical_log_scale(scales);
    grid_.row_step = class_step(length);
    grid_.base =
        static_cast<uint16_t>(std::clamp(aligned(mean / kScaleUnit), 0, format_.max_scale()));
    const int center = grid::center_of(grid_.base);
    std::vector<int16_t> classes;
    const uint64_t cost =
        grid::choose_classes(scales, center, kScaleUnit << grid_.row_step, classes);
    const uint64_t one = grid::cost_of_one(scales, center);
    const OddRows odd = odd_rows(begin, rows);
    zeros_ = odd.zeros * length;
    const bool pays = cost + kOverrated * classes.size() < one;
    if (!pays && odd.zeros + odd.others == 0) grid_.row_length = 0;
  }

  // Rows that the estimates of a few rows may miss.
  struct OddRows {
    size_t zeros = 0;   // rows that look like nothing but zeros
    size_t others = 0;  // rows whose scale is several octaves away
  };

  // Looks at the first items of the rows from `begin` on.
  OddRows odd_rows(uint64_t begin, size_t rows) const {
    constexpr size_t kLookedAt = 32;
    // The largest of that many items is one or two octaves above a scale.
    constexpr int kBelow = 3, kAbove = 4;
    OddRows odd;
    for (size_t r = 0; r < rows; ++r) {
      uint16_t keys[kLookedAt];
      items_.load(begin + r * grid_.row_length, kLookedAt, keys);
      uint16_t most = 0;
      for (const uint16_t key : keys) most = std::max(most, key);
      const int exponent = most >> format_.fraction;
      if (most <= 1) {
        ++odd.zeros;
      } else if (exponent < exponent_ - kBelow || exponent > exponent_ + kAbove) {
        ++odd.others;
      }
    }
    return odd;
  }

  const grid::KeyFormat& format_;
  const Items& items_;
  const uint64_t first_;
  const size_t n_;
  const int exponent_;
  const Magnitudes magnitudes_;
  Grid grid_;
  uint64_t zeros_ = 0;
};

}  // namespace

FittedGrid fit_grid(const grid::KeyFormat& format, const Items& items, uint64_t first, size_t n,
                    size_t row, const Grid* before) {
  return GridFit(format, items, first, n).fit(row, before);
}

}  // namespace bf16codecs::tiles
