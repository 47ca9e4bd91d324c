#pragma once

// Escapes in the vector kernels of the tiles mode (docs/format_tiles.md, "Symbols and raw bits"),
// which are handled key by key. An escape's symbol is 0, which no interval has. Each file that
// includes this has a copy of its own, built for its instruction set.

#include "kernels/bits.h"
#include "kernels/kernels.h"

namespace bf16codecs {
namespace {

// Overwrites the keys, or items, of the mask with the next escapes. The check keeps
// damaged data from reading past them; the caller rejects them by the flag.
inline BF16CODECS_COLD void patch_escapes(uint64_t mask, bool to_items, TileEscapes& escapes,
                                          uint8_t* out) {
  for (; mask != 0; mask &= mask - 1) {
    unsigned key = 0;
    if (escapes.next == escapes.end) {
      escapes.overrun = true;
    } else {
      key = escapes.next[0] | static_cast<unsigned>(escapes.next[1]) << 8;
      escapes.next += 2;
    }
    if (to_items) key = key >> 1 | key << 15;
    uint8_t* const word = out + 2 * first_bit(mask);
    word[0] = static_cast<uint8_t>(key);
    word[1] = static_cast<uint8_t>(key >> 8);
  }
}

// Appends the keys of the mask.
inline BF16CODECS_COLD uint16_t* save_escapes(uint64_t mask, const uint16_t* keys,
                                              uint16_t* escapes) {
  for (; mask != 0; mask &= mask - 1) *escapes++ = keys[first_bit(mask)];
  return escapes;
}

}  // namespace
}  // namespace bf16codecs
