#pragma once

// The tiles mode's decoder of instruction sets that have a table in registers. Each file that
// includes this has a copy of its own, built for its instruction set.

#include "kernels/groups.h"

namespace bf16codecs {
namespace {

// Decodes steps, as TileKernels::decode does. `Rows` is made of a table, and decode_step() decodes
// a symbol in each lane of a group with it.
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
