#pragma once

#include <cstdint>

#include "huffman_code.h"

namespace bf16codecs {

// Bits of the stream that one look-up sees. No code is longer, so every look-up decodes at least
// one symbol.
inline constexpr unsigned kLookupBits = kMaxCodeLength;
inline constexpr unsigned kEntrySymbols = 6;

// All whole codes, at most kEntrySymbols, at the beginning of a window of bits:
// bits 0-47 the symbols, the first lowest; bits 48-55 the bits that they take; bits 56-63 how
// many they are.
//
// With x = entry >> 48, the low 6 bits of x are the shift that consumes the codes, and the sum of
// the x of up to 256 / kLookupBits look-ups holds the bits in its low byte, the symbols above.
using LookupEntry = uint64_t;
inline constexpr unsigned kEntryBitsAt = 48;
inline constexpr unsigned kEntryCountAt = 56;

class LookupTable {
 public:
  // `lengths` are a complete code's.
  explicit LookupTable(const uint8_t lengths[256]);

  // Indexed by the next kLookupBits bits, the first highest.
  const LookupEntry* entries() const { return windows_ + (size_t{1} << kLookupBits); }
  unsigned length(uint8_t symbol) const { return lengths_[symbol]; }

 private:
  void build_window(unsigned width, const CanonicalOrder& order);

  // The table of windows of w bits is at [2^w, 2^(w + 1)): those of fewer than kLookupBits bits
  // are what the wider ones are composed of.
  alignas(64) LookupEntry windows_[size_t{2} << kLookupBits];
  uint8_t lengths_[256];
};

}  // namespace bf16codecs
