#pragma once

// Constants and types of the loops that write Huffman streams (docs/format.md, "Huffman plane").
// There are no functions here, because files for several instruction sets include this.

#include <cstdint>

namespace bf16codecs {

inline constexpr unsigned kLongestCode = 11;

// A stream that is being written. `bits` has the `count` bits, the first one lowest, that are not
// written yet: fewer than 8 between calls.
struct BitSink {
  uint64_t bits;
  unsigned count;
  uint8_t* out;
  const uint8_t* end;
};

// Codes by the lowest 6 bits of their symbols, which must all differ: bits 0-10 are the code, bits
// 12-15 its length. The exponents of weights mostly have fewer than 64 values, next to each other.
inline constexpr unsigned kPackEntries = 64;
inline constexpr unsigned kPackLengthAt = 12;

// Symbols that are packed at a time, and the room in bytes that this takes: codes of kLongestCode
// bits, and 8 more because every store writes 8 bytes.
inline constexpr unsigned kPackSymbols = 64;
inline constexpr unsigned kPackRoom = kPackSymbols * kLongestCode / 8 + 8;

}  // namespace bf16codecs
