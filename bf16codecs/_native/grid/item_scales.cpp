#include "grid/item_scales.h"

#include <algorithm>

#include "kernels/kernels.h"

namespace bf16codecs::grid {

// The kernels take scales of the grid apart.
static_assert(kScaleSteps == kScaleFractions);

void ItemScales::fill(size_t begin, size_t n, uint16_t* scales) const {
  const uint64_t from = first_ + begin;
  const size_t first_row =
      grid_.row_length ? static_cast<size_t>(from / grid_.row_length - first_ / grid_.row_length)
                       : 0;
  const auto fill_piece = [&](size_t at, size_t end, size_t row, size_t column) {
    int scale = grid_.base + rows_.offset;
    if (grid_.row_length) scale += rows_.rows[first_row + row] * (1 << grid_.row_step);
    scale = std::clamp(scale, 0, most_);
    if (!grid_.period) {
      std::fill(scales + at, scales + end, static_cast<uint16_t>(scale));
      return;
    }
    kernels().add_columns(grid_.columns.data() + column, grid_.column_step, scale, most_, end - at,
                          scales + at);
  };
  for_each_piece(grid_.row_length, grid_.period, from, n, fill_piece);
}

}  // namespace bf16codecs::grid
