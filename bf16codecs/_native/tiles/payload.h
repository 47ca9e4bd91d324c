#pragma once

// The parts of a block in the tiles mode (docs/format_tiles.md, "Payload of a block").

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/tiles.h"

namespace bf16codecs::tiles {

// The sizes of a payload's parts, which follow from the numbers of items and groups.
struct Counts {
  size_t lanes, coded, rest, tiles;
  size_t records, in_states;  // bytes of records, and how many of these the last states hold

  Counts(size_t n, unsigned groups, unsigned raw_bits)
      : lanes(kLanesPerGroup * groups),
        coded(n - n % std::max(kRecordItems, lanes)),
        rest(n - coded),
        tiles(std::max<size_t>(1, (coded + kTileItems / 2) / kTileItems)),
        records(coded / kRecordItems * record_size(raw_bits)),
        in_states(records >= 2 * lanes ? 2 * lanes : 0) {}

  size_t tile_begin(size_t tile) const { return tile * kTileItems; }
  size_t tile_size(size_t tile) const {
    return tile + 1 == tiles ? coded - tile_begin(tile) : kTileItems;
  }
};

// The table of each step of a tile in its order: that of the class of the step's 17th item.
inline void step_classes(const TileOrder& order, size_t steps, uint8_t* classes) {
  size_t step = 0;
  for (unsigned c = 0; c < kTileClasses; ++c) {
    // Up to the first step whose 17th item is past the class.
    const size_t end =
        std::min<size_t>(steps, (order.begin[c + 1] + kStepItems / 2 - 1) / kStepItems);
    for (; step < end; ++step) classes[step] = static_cast<uint8_t>(c);
  }
}

}  // namespace bf16codecs::tiles
