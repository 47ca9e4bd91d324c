#pragma once

// Frames of blocks in the grid mode, of random parts.

#include "check.h"
#include "format/frame.h"

namespace bf16codecs::test {

struct GridFrame {
  FrameIndex index;
  Bytes blocks;  // their bytes, from the first one's on

  // An address to which the offsets of blocks are added.
  const uint8_t* frame() const { return blocks.data() - index.offsets.front(); }
};

// Blocks of one grid, whose groups may end anywhere, and some of which may be plain. Symbols are in
// any mode that devices decode.
GridFrame random_grids(Random& random);

}  // namespace bf16codecs::test
