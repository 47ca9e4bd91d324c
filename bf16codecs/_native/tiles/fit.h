#pragma once

// Inside the encoder of the tiles mode: how a section's grid and tables are found.

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "format/layout.h"
#include "grid/grid.h"
#include "tiles/model.h"

namespace bf16codecs::tiles {

// How often each symbol occurs in each class; symbol 0 are the escapes.
using SymbolCounts = std::array<std::array<uint32_t, 256>, kTileClasses>;

struct FittedGrid {
  grid::Grid grid;
  uint64_t zeros = 0;  // items of runs that look like nothing but zeros
};

// Finds the grid of items [first, first + n), a section; `before` is the section before, or null.
FittedGrid fit_grid(const grid::KeyFormat& format, const Items& items, uint64_t first, size_t n,
                    size_t row, const grid::Grid* before);

// Length of the rows in which scales repeat, 0 if there are none: the shortest lag at which items
// agree on being large.
size_t find_row(const Items& items, size_t n);

// Chooses classes and tables for what was counted; `items` is how many the section has.
void fit_tables(const SymbolCounts& counts, uint64_t items, Section& section);

}  // namespace bf16codecs::tiles
