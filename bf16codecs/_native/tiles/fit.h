#pragma once

// Inside the encoder of the tiles mode: finding the grid and the tables of a section. The format
// leaves these choices to the encoder (docs/format_tiles.md, "Scales" and "The tile model").

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "format/layout.h"
#include "grid/classes.h"
#include "grid/grid.h"
#include "tiles/magnitudes.h"
#include "tiles/model.h"

namespace bf16codecs::tiles {

// The scales of a block's rows, and the number of zeros among its items.
struct FittedRows {
  grid::RowScales scales;
  uint64_t zeros = 0;
};

// Finds the scales of rows. The grid must outlive it.
class RowFit {
 public:
  // Expects magnitudes around `exponent`.
  RowFit(const grid::KeyFormat& format, const grid::Grid& grid, int exponent);

  // Estimates the scales of the rows that items [first, first + n) touch, or one scale of all these
  // items if the grid has no rows.
  grid::Scales estimate(const Items& items, uint64_t first, size_t n) const;
  // Chooses the classes of these rows, for a block of these items.
  FittedRows fit(const Items& items, uint64_t first, size_t n) const;

 private:
  grid::KeyFormat format_;
  const grid::Grid* grid_;
  Magnitudes magnitudes_;
  std::vector<float> weights_;  // of the columns
};

// Estimates the scales of the columns of whole rows, whose first one begins with the item `begin`,
// relative to those of the rows. 1024 rows give a column's scale to 0.001 bits per item.
grid::Scales column_scales(const grid::KeyFormat& format, const Magnitudes& magnitudes,
                           const Items& items, uint64_t begin, size_t row, size_t rows);

// Gives the class of the lowest scale to rows, or columns, that are all zeros: at that scale a zero
// is the most frequent symbol, where it would be an escape otherwise.
void sink_zeros(const grid::Scales& scales, int base, unsigned step, std::vector<int16_t>& classes);

// How often each symbol occurs in each table class; symbol 0 stands for escapes.
using SymbolCounts = std::array<std::array<uint32_t, 256>, kTileClasses>;

struct FittedGrid {
  grid::Grid grid;
  uint64_t zeros = 0;  // items of rows that look like nothing but zeros
};

// Finds the grid of items [first, first + n), a section; `before` is the section before, or null.
FittedGrid fit_grid(const grid::KeyFormat& format, const Items& items, uint64_t first, size_t n,
                    size_t row, const grid::Grid* before);

// Finds the length of the rows in which scales repeat, 0 if there are none: the shortest lag at
// which items agree on being larger than their neighbours.
size_t find_row(const Items& items, size_t n);

// Chooses table classes and tables by what was counted, for a section of `items` items whose keys
// have `key_bits` bits.
void fit_tables(const SymbolCounts& counts, uint64_t items, unsigned key_bits, Section& section);

}  // namespace bf16codecs::tiles
