#pragma once

// Escapes in the vector kernels of the pairs mode (docs/format.md, "rANS plane, pairs"), which are
// handled symbol by symbol. A vector kernel decodes an escape as the symbol of its entry, 0, and
// then puts the next byte of the escapes in its place. Each file that includes this has a copy of
// its own, built for its instruction set.

#include "kernels/bits.h"
#include "kernels/kernels.h"

namespace bf16codecs {
namespace {

// The check keeps damaged data from reading past the escapes; the caller rejects them by the flag.
BF16CODECS_INLINE uint8_t next_escape(PairsDecoder& d) {
  if (d.escapes == d.escapes_end) {
    d.escapes_overrun = true;
    return 0;
  }
  return *d.escapes++;
}

// Takes symbols as a plane.
struct PlaneSink {
  uint8_t* plane;

  BF16CODECS_INLINE void patch(uint8_t symbol, size_t at) { plane[at] = symbol; }
  BF16CODECS_INLINE void advance(size_t symbols) { plane += symbols; }
};

// Takes symbols as the high bytes of 16-bit items whose low bytes are a plane.
struct ItemSink {
  const uint8_t* low;
  uint8_t* items;

  BF16CODECS_INLINE void patch(uint8_t symbol, size_t at) {
    // The item is stored already, with 0 as its high byte: bits 7 to 14 once it is rotated back.
    uint8_t* item = items + 2 * at;
    item[0] = static_cast<uint8_t>((item[0] & 0x7F) | symbol << 7);
    item[1] = static_cast<uint8_t>((item[1] & 0x80) | symbol >> 1);
  }
  BF16CODECS_INLINE void advance(size_t symbols) { low += symbols, items += 2 * symbols; }
};

// Replaces the symbols of the mask, counted from `at`, by the next escapes, the lowest bit first.
template <typename Sink>
BF16CODECS_INLINE void patch_masked(PairsDecoder& d, uint64_t mask, size_t at, Sink& sink) {
  for (; mask != 0; mask &= mask - 1) sink.patch(next_escape(d), at + first_bit(mask));
}

// Writes the symbols of the mask downwards in memory, the last one first, so that
// they are in the order of the plane.
inline BF16CODECS_COLD void save_escapes(PairsEncoder& e, uint64_t mask, const uint8_t* symbols) {
  while (mask != 0) {
    const unsigned p = last_bit(mask);
    *--e.escapes = symbols[p];
    mask &= ~(uint64_t{1} << p);
  }
}

}  // namespace
}  // namespace bf16codecs
