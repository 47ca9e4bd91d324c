#pragma once

// The scales of a block's items, by their rows and columns (docs/format_tiles.md, "Scales").

#include <cstddef>
#include <cstdint>

#include "grid/grid.h"
#include "grid/keys.h"

namespace bf16codecs::grid {

class ItemScales {
 public:
  ItemScales(const KeyFormat& format, const Grid& grid, const RowScales& rows, uint64_t first)
      : grid_(grid), rows_(rows), most_(format.max_scale()), first_(first) {}

  // Writes the scales of items [begin, begin + n) of the block.
  void fill(size_t begin, size_t n, uint16_t* scales) const;

 private:
  const Grid& grid_;
  const RowScales& rows_;
  int most_;
  uint64_t first_;
};

}  // namespace bf16codecs::grid
