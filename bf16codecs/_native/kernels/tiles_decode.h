#pragma once

// The loop of the tiles mode's decoder (docs/format_tiles.md, "Tiles") for the instruction sets
// that keep a table's rows in registers. Each file that includes this has a copy of its own, built
// for its instruction set.

#include "kernels/groups.h"

namespace bf16codecs {
namespace {

// Implements TileKernels::decode. `Rows` is made of a table; decode_step() decodes a symbol from
// each lane of a group with it, and gives words to the lanes that need one. Steps of a class lie
// side by side, so that the rows change at most three times a tile.
template <typename Rows, typename Group>
BF16CODECS_INLINE void decode_tiles(TileDecoder& d, const TileTable tables[],
                                    const uint8_t* classes, size_t steps, uint8_t* symbols) {
  if (steps == 0) return;
  unsigned current = classes[0];
  Rows rows(tables[current]);
  States<Group> states(d);
  const uint8_t* words = d.words;
  for (size_t step = 0; step < steps; ++step) {
    if (classes[step] != current) [[unlikely]] {
      current = classes[step];
      rows = Rows(tables[current]);
    }
    decode_step(rows, *states.of(step), words, symbols + kStepItems * step);
  }
  states.store(d);
  d.words = words;
}

}  // namespace
}  // namespace bf16codecs
