#pragma once

// What the loops that write Huffman streams share (docs/format.md, "Huffman plane"). No functions:
// files for several instruction sets include this.

#include <cstdint>

namespace bf16codecs {

inline constexpr unsigned kLongestCode = 11;

// A stream that is being written: `bits` are not yet, the first lowest; fewer than 8 between calls.
struct BitSink {
  uint64_t bits;
  unsigned count;
  uint8_t* out;
  const uint8_t* end;
};

// Codes by their symbols' lowest 6 bits, which must differ: bits 0-10 the code, bits 12-15 its
// length. Exponents of weights as a rule have fewer than 64 values, next to each other.
inline constexpr unsigned kPackEntries = 64;
inline constexpr unsigned kPackLengthAt = 12;

// Symbols that are packed at a time, and the room that this takes: codes of kLongestCode bits, and
// what the last store writes after them.
inline constexpr unsigned kPackSymbols = 64;
inline constexpr unsigned kPackRoom = kPackSymbols * kLongestCode / 8 + 8;

}  // namespace bf16codecs
