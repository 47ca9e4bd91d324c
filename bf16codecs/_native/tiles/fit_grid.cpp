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

// What a class of an estimated scale seems to gain beyond what it does, in 4096ths of a bit: means
// of magnitudes are not quite the scales that code these items best.
constexpr uint64_t kOverrated = kOctave / 4;

std::vector<float> column_weights(const Grid& grid) {
  std::vector<float> weights;
  weights.reserve(grid.columns.size());
  for (const int column : grid.columns) {
    weights.push_back(inverse_scale(column * (1 << grid.column_step)));
  }
  return weights;
}

// Gives the class of the lowest scale to what is all zeros: there a zero is the symbol that is most
// frequent, where it would be an escape otherwise.
void sink_zeros(const grid::Scales& scales, int base, unsigned step,
                std::vector<int16_t>& classes) {
  const int lowest = std::max(-grid::kMaxClass, -(base >> step) - 1);
  for (size_t i = 0; i < classes.size(); ++i) {
    if (scales.count[i] == 0) classes[i] = static_cast<int16_t>(lowest);
  }
}

// Scales of the runs that items [first, first + n) touch, given the weights of columns.
grid::Scales row_scales(const Magnitudes& magnitudes, const Grid& grid,
                        const std::vector<float>& weights, const Items& items, uint64_t first,
                        size_t n) {
  constexpr size_t kLoaded = 4096;
  const size_t rows = std::max<size_t>(1, grid::rows_in(grid, first, n));
  std::vector<uint64_t> sums(rows);
  grid::Scales scales{std::vector<int>(rows), std::vector<uint64_t>(rows)};
  uint16_t keys[kLoaded];
  for (size_t at = 0; at < n; at += kLoaded) {
    const uint64_t from = first + at;
    const size_t loaded = std::min(kLoaded, n - at);
    const size_t row_of_first = rows == 1 ? 0 : grid::rows_in(grid, first, at + 1) - 1;
    const auto add = [&](size_t begin, size_t end, size_t row, size_t column) {
      const float* const weight = weights.empty() ? nullptr : weights.data() + column;
      const MagnitudeSum sum = magnitudes.sum(keys + begin, end - begin, weight);
      sums[row_of_first + row] += sum.sum;
      scales.count[row_of_first + row] += sum.nonzero;  // zeros carry no scale
    };
    items.load(from, loaded, keys);
    grid::for_each_piece(grid.run, grid.period, from, loaded, add);
  }
  for (size_t row = 0; row < rows; ++row) {
    if (sums[row] == 0) scales.count[row] = 0;
    if (scales.count[row] != 0) {
      scales.log_scale[row] = magnitudes.log_scale(sums[row], scales.count[row]);
    }
  }
  return scales;
}

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
    grid_.run = grid::choose_run(row);
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
    const grid::Scales columns = column_scales(begin, row, rows);
    const bool has_zeros =
        std::find(columns.count.begin(), columns.count.end(), 0u) != columns.count.end();
    const int center = grid::mean_log_scale(columns);
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

  // Of rows from `begin` on. 1024 of them give a column's scale to 0.001 bits an item.
  grid::Scales column_scales(uint64_t begin, size_t row, size_t rows) const {
    constexpr size_t kMaxRows = 1024;
    const size_t stride = (rows + kMaxRows - 1) / kMaxRows;
    std::vector<uint16_t> keys(row);
    std::vector<uint32_t> part(row);
    std::vector<uint64_t> sums(row);
    size_t added = 0;
    const auto flush = [&] {
      for (size_t j = 0; j < row; ++j) sums[j] += part[j];
      std::fill(part.begin(), part.end(), 0);
    };
    for (size_t r = 0; r < rows; r += stride) {
      items_.load(begin + row * r, row, keys.data());
      const uint64_t sum = magnitudes_.sum(keys.data(), row, nullptr).sum;
      if (sum == 0) continue;
      const int log = magnitudes_.log_scale(sum, row) - exponent_ * kOctave;
      magnitudes_.add_to(keys.data(), row, inverse_scale(log / kScaleUnit), part.data());
      if (++added % Magnitudes::kMaxAdded == 0) flush();
    }
    flush();
    grid::Scales scales{std::vector<int>(row), std::vector<uint64_t>(row)};
    for (size_t j = 0; j < row; ++j) {
      if (sums[j] == 0) continue;
      scales.log_scale[j] = magnitudes_.log_scale(sums[j], added);
      scales.count[j] = rows;
    }
    return scales;
  }

  // Steps of a quarter of an octave or more give scales that are all at one place of their classes'
  // quarters: better in the middle than at an end, which would cost up to 0.007 bits.
  int aligned(int base) const {
    const bool has_fine_columns = grid_.period != 0 && grid_.column_step < 2;
    if (grid_.row_step < 2 || has_fine_columns) return base;
    return base / 4 * 4 + std::clamp(base % 4, 1, 2);
  }

  // Finds the base and the step of rows, from some of them, and whether they pay.
  void fit_rows() {
    constexpr size_t kMaxRuns = 64;
    const std::vector<float> weights = column_weights(grid_);
    const size_t run = grid_.run;
    const uint64_t begin = (first_ + run - 1) / run * run;
    const size_t runs = begin < first_ + n_ ? static_cast<size_t>((first_ + n_ - begin) / run) : 0;
    grid::Scales scales;
    const auto add = [&](uint64_t first, size_t n) {
      const grid::Scales some = row_scales(magnitudes_, grid_, weights, items_, first, n);
      scales.log_scale.insert(scales.log_scale.end(), some.log_scale.begin(), some.log_scale.end());
      scales.count.insert(scales.count.end(), some.count.begin(), some.count.end());
    };
    const size_t stride = runs / kMaxRuns + 1;
    for (size_t r = 0; r < runs; r += stride) add(begin + run * r, run);
    if (runs == 0) add(first_, n_);
    const int mean = grid::mean_log_scale(scales);
    grid_.row_step = class_step(run);
    grid_.base =
        static_cast<uint16_t>(std::clamp(aligned(mean / kScaleUnit), 0, format_.max_scale()));
    const int center = grid::center_of(grid_.base);
    std::vector<int16_t> classes;
    const uint64_t cost =
        grid::choose_classes(scales, center, kScaleUnit << grid_.row_step, classes);
    const uint64_t one = grid::cost_of_one(scales, center);
    const OddRuns odd = odd_runs(begin, runs);
    zeros_ = odd.zeros * run;
    const bool pays = cost + kOverrated * classes.size() < one;
    if (!pays && odd.zeros + odd.others == 0) grid_.run = 0;
  }

  // Runs that a few of them may well not show.
  struct OddRuns {
    size_t zeros = 0;   // that look like nothing but zeros
    size_t others = 0;  // whose scale is several octaves away
  };

  // Looks at the first items of the runs from `begin` on.
  OddRuns odd_runs(uint64_t begin, size_t runs) const {
    constexpr size_t kLookedAt = 32;
    // The largest of them is one or two octaves above a scale.
    constexpr int kBelow = 3, kAbove = 4;
    OddRuns odd;
    for (size_t r = 0; r < runs; ++r) {
      uint16_t keys[kLookedAt];
      items_.load(begin + r * grid_.run, kLookedAt, keys);
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

RowFit::RowFit(const grid::KeyFormat& format, const Grid& grid)
    : grid_(&grid),
      magnitudes_(format, grid.base / static_cast<int>(grid::kScaleSteps)),
      weights_(column_weights(grid)) {}

grid::RowScales RowFit::fit(const Items& items, uint64_t first, size_t n) const {
  constexpr uint64_t kOffsetCost = 8 * kOctave;
  const grid::Scales scales = row_scales(magnitudes_, *grid_, weights_, items, first, n);
  const int center = grid::center_of(grid_->base);
  const int away = grid::mean_log_scale(scales) - center;
  // By whole steps of the rows, so that the base's place in its class stays.
  const int unit = kScaleUnit << (grid_->run == 0 ? 0 : grid_->row_step);
  const int moved = center + (away + (away >= 0 ? unit / 2 : -unit / 2)) / unit * unit;
  const bool pays =
      grid::cost_of_one(scales, moved) + kOffsetCost < grid::cost_of_one(scales, center);
  grid::RowScales rows;
  if (pays) rows.offset = (moved - center) / kScaleUnit;
  if (grid_->run == 0) return rows;
  grid::choose_classes(scales, pays ? moved : center, unit, rows.rows);
  sink_zeros(scales, grid_->base + rows.offset, grid_->row_step, rows.rows);
  return rows;
}

}  // namespace bf16codecs::tiles
