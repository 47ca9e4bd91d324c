// Estimating the scales of a block's rows, and choosing their classes.

#include <algorithm>

#include "grid/classes.h"
#include "grid/fixed_point.h"
#include "tiles/fit.h"
#include "tiles/magnitudes.h"

namespace bf16codecs::tiles {
namespace {

using grid::kOctave;
using grid::kScaleUnit;

// Loads the keys of the `row`-th row that items [first, first + n) touch.
std::vector<uint16_t> keys_of_row(const grid::Grid& grid, const Items& items, uint64_t first,
                                  size_t n, size_t row) {
  const uint64_t from =
      grid.row_length == 0 ? first : (first / grid.row_length + row) * grid.row_length;
  const uint64_t begin = std::max(first, from);
  const uint64_t end =
      grid.row_length == 0 ? first + n : std::min(first + n, from + grid.row_length);
  std::vector<uint16_t> keys(static_cast<size_t>(end - begin));
  items.load(begin, keys.size(), keys.data());
  return keys;
}

}  // namespace

void sink_zeros(const grid::Scales& scales, int base, unsigned step,
                std::vector<int16_t>& classes) {
  const int lowest = std::max(-grid::kMaxClass, -(base >> step) - 1);
  for (size_t i = 0; i < classes.size(); ++i) {
    if (scales.count[i] == 0) classes[i] = static_cast<int16_t>(lowest);
  }
}

RowFit::RowFit(const grid::KeyFormat& format, const grid::Grid& grid, int exponent)
    : format_(format),
      grid_(&grid),
      magnitudes_(format, exponent),
      weights_(inverse_scales(grid.columns, grid.column_step)) {}

grid::Scales RowFit::estimate(const Items& items, uint64_t first, size_t n) const {
  constexpr size_t kLoaded = 4096;
  const size_t rows = std::max<size_t>(1, grid::rows_in(*grid_, first, n));
  std::vector<uint64_t> sums(rows);
  grid::Scales scales{std::vector<int>(rows), std::vector<uint64_t>(rows)};
  uint16_t keys[kLoaded];
  for (size_t at = 0; at < n; at += kLoaded) {
    const uint64_t from = first + at;
    const size_t loaded = std::min(kLoaded, n - at);
    const size_t row_of_first = rows == 1 ? 0 : grid::rows_in(*grid_, first, at + 1) - 1;
    const auto add = [&](size_t begin, size_t end, size_t row, size_t column) {
      const float* const weight = weights_.empty() ? nullptr : weights_.data() + column;
      const MagnitudeSum sum = magnitudes_.sum(keys + begin, end - begin, weight);
      sums[row_of_first + row] += sum.sum;
      scales.count[row_of_first + row] += sum.nonzero;  // zeros carry no scale
    };
    items.load(from, loaded, keys);
    grid::for_each_piece(grid_->row_length, grid_->period, from, loaded, add);
  }
  for (size_t row = 0; row < rows; ++row) {
    if (scales.count[row] == 0) continue;
    scales.log_scale[row] = sums[row] != 0
                                ? magnitudes_.log_scale(sums[row], scales.count[row])
                                : faint_scale(format_, keys_of_row(*grid_, items, first, n, row));
  }
  return scales;
}

FittedRows RowFit::fit(const Items& items, uint64_t first, size_t n) const {
  constexpr uint64_t kOffsetCost = 8 * kOctave;
  const grid::Scales scales = estimate(items, first, n);
  const int center = grid::center_of(grid_->base);
  const int away = grid::mean_log_scale(scales) - center;
  // The offset is in whole steps of the rows, so that the base keeps its place in its table class.
  const int unit = kScaleUnit << (grid_->row_length == 0 ? 0 : grid_->row_step);
  const int moved = center + (away + (away >= 0 ? unit / 2 : -unit / 2)) / unit * unit;
  const bool pays =
      grid::cost_of_one(scales, moved) + kOffsetCost < grid::cost_of_one(scales, center);
  FittedRows fitted;
  fitted.zeros = n;
  for (const uint64_t count : scales.count) fitted.zeros -= count;
  grid::RowScales& rows = fitted.scales;
  if (pays) rows.offset = (moved - center) / kScaleUnit;
  if (grid_->row_length == 0) return fitted;
  grid::choose_classes(scales, pays ? moved : center, unit, rows.rows);
  sink_zeros(scales, grid_->base + rows.offset, grid_->row_step, rows.rows);
  return fitted;
}

}  // namespace bf16codecs::tiles
