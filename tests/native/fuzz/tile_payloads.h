#pragma once

#include "core.h"
#include "grid/grid.h"
#include "tiles/model.h"

namespace bf16codecs::fuzz {

using Words = std::vector<uint16_t>;

// A block of the tiles mode, and choices that its encoder is free in.
struct TileBlock {
  uint64_t first = 0;
  unsigned groups_log2 = 0;
  bool has_more_escapes = false;  // than items that need to be escapes
  grid::RowScales rows;
  Words keys;
};

// The scales of its items.
Words scales_of(const tiles::Model& model, const TileBlock& block);

// Its payload (docs/format_tiles.md, "Payload of a block"), by the kernels in use; empty if it has
// too few items. The core's encoder takes models that it fitted itself, this one any.
Bytes tile_payload(const tiles::Model& model, const TileBlock& block);

}  // namespace bf16codecs::fuzz
