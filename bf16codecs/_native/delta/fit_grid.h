#pragma once

// Scales of rows and columns of differences.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "format/layout.h"
#include "grid/grid.h"

namespace bf16codecs::delta {

// Whether differences of such items are themselves such items, however small.
inline bool has_grid(const Layout& layout) {
  return layout.dtype == DType::bfloat16 || layout.dtype == DType::float32 ||
         layout.dtype == DType::float64;
}

// Finds the grid of the differences of n items, a section that begins at `first`; `before` is the
// grid of the section before, or null.
grid::Grid fit_grid(const Layout& layout, const uint8_t* base, const uint8_t* items, uint64_t first,
                    size_t n, size_t row, const grid::Grid* before);

// Scales of the rows of items [first, first + n).
grid::RowScales fit_rows(const Layout& layout, const grid::Grid& grid, const uint8_t* base,
                         const uint8_t* items, uint64_t first, size_t n);

}  // namespace bf16codecs::delta
