#pragma once

// The layout of the pairs mode's decoders for AVX2 and AVX-512 (docs/format.md, "rANS plane,
// pairs"). Both hold 32-bit states of lanes 0-15 and of lanes 16-31 in registers of their own, and
// join the low halves of lanes i and 16 + i to one dword, whose bytes are the slots of four
// symbols:
//
//   byte      0        1            2            3
//   slot      a        b            a            b
//   lane      i        i            16 + i       16 + i
//   symbol    2 i      2 i + 32     2 i + 1      2 i + 33
//
// Entries and symbols that are found by these slots have the same layout. Its words' low bytes are
// symbols 0-31 in order, their high bytes symbols 32-63.
//
// Each file that includes this has a copy of its own, built for its instruction set.

#include "kernels/bits.h"

namespace bf16codecs {
namespace {

// The escapes of a group, as a mask of the bytes of its entries in the layout above.
struct DwordBytes {
  uint64_t bytes;

  BF16CODECS_INLINE bool any() const { return bytes != 0; }
  // The mask by symbols: byte `at` is symbol 2 (at / 4), one more if it is of the odd lane, and 32
  // more if it is of slot b.
  uint64_t mask() const {
    uint64_t symbols = 0;
    for (uint64_t left = bytes; left != 0; left &= left - 1) {
      const unsigned at = first_bit(left);
      symbols |= uint64_t{1} << (2 * (at / 4) + (at % 4 >> 1) + (at & 1) * 32);
    }
    return symbols;
  }
};

}  // namespace
}  // namespace bf16codecs
