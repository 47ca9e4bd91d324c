#pragma once

// Frequencies of the rANS modes, and what they cost. The format leaves them to the encoder
// (docs/format.md, "rANS plane, pairs" and "rANS plane, wide").

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

namespace bf16codecs {

inline constexpr unsigned kWideBits = 12;

using LogTable = std::array<uint32_t, (1u << kWideBits) + 1>;
extern const LogTable kLogTable;

// log2(x) in units of 2^-16, rounded down, for x >= 1; above 4096 only the 12 leading bits of x
// count. It uses integers alone: the encoder's choices depend on it, and its bytes must be the same
// on every platform.
inline uint32_t log2_fixed(uint32_t x) {
  const unsigned width = static_cast<unsigned>(std::bit_width(x));
  const unsigned shift = width > kWideBits ? width - kWideBits : 0;
  return kLogTable[x >> shift] + (shift << 16);
}

// Turns counts into frequencies of at least 1 with the sum 2^bits, and with nearly the smallest
// coded size.
//
// counts[0, n) are at least 1 and sum to total; 2 <= n <= 2^bits.
void normalize(const uint32_t* counts, size_t n, uint64_t total, unsigned bits,
               uint16_t* frequencies);

// The size of all symbols by their order-0 entropy, in units of 2^-16 bit.
uint64_t entropy_size(std::span<const uint32_t> counts);

// The size of counts[i] symbols with frequencies[i] of 2^bits, for all i, in units of 2^-16 bit.
uint64_t coded_size(const uint32_t* counts, const uint16_t* frequencies, size_t n, unsigned bits);

}  // namespace bf16codecs
