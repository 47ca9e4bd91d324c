#pragma once

// What the vector kernels of the pairs mode do with symbols one by one, for escapes. Each file
// that includes this has a copy of its own, built for its instruction set.

#include "kernels/bits.h"
#include "kernels/kernels.h"

namespace bf16codecs {
namespace {

BF16CODECS_INLINE uint8_t next_escape(PairsDecoder& d) {
  if (d.escapes == d.escapes_end) {
    d.escapes_overrun = true;
    return 0;
  }
  return *d.escapes++;
}

// Symbols as a plane.
struct PlaneSink {
  uint8_t* plane;

  BF16CODECS_INLINE void patch(uint8_t symbol, size_t at) { plane[at] = symbol; }
  BF16CODECS_INLINE void advance(size_t symbols) { plane += symbols; }
};

// Symbols as the high bytes of 16-bit items, over a low plane.
struct ItemSink {
  const uint8_t* low;
  uint8_t* items;

  BF16CODECS_INLINE void patch(uint8_t symbol, size_t at) {
    uint8_t* item = items + 2 * at;  // bits 7 to 14
    item[0] = static_cast<uint8_t>((item[0] & 0x7F) | symbol << 7);
    item[1] = static_cast<uint8_t>((item[1] & 0x80) | symbol >> 1);
  }
  BF16CODECS_INLINE void advance(size_t symbols) { low += symbols, items += 2 * symbols; }
};

// Puts escapes in the places of the mask.
template <typename Sink>
BF16CODECS_INLINE void patch_places(PairsDecoder& d, uint64_t places, size_t at, Sink& sink) {
  for (; places != 0; places &= places - 1) sink.patch(next_escape(d), at + first_bit(places));
}

// Writes the symbols in the places of the mask, the last first.
inline BF16CODECS_COLD void save_escapes(PairsEncoder& e, uint64_t places, const uint8_t* symbols) {
  while (places != 0) {
    const unsigned p = last_bit(places);
    *--e.escapes = symbols[p];
    places &= ~(uint64_t{1} << p);
  }
}

}  // namespace
}  // namespace bf16codecs
