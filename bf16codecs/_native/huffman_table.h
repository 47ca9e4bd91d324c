#pragma once

#include <cstddef>
#include <cstdint>

#include "huffman_code.h"

namespace bf16codecs {

// Bits of the stream that one look-up sees. No code is longer, so every look-up decodes at least
// one symbol.
inline constexpr unsigned kLookupBits = kMaxCodeLength;
inline constexpr unsigned kEntrySymbols = 6;

// All whole codes, at most kEntrySymbols, at the beginning of a window of bits: bits 0-7 how
// many bits they take, so that the entry itself can be the operand of a shift; bits 8-15 how many
// they are; bits 16-63 their symbols, the first highest. Planes are decoded from the end to the
// beginning: a little-endian store of the entry that ends where the plane's known part begins
// puts the symbols in place, and the rest where the next store goes.
using LookupEntry = uint64_t;
inline constexpr unsigned entry_bits(LookupEntry entry) { return entry & 255; }
inline constexpr unsigned entry_count(LookupEntry entry) { return entry >> 8 & 255; }

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
