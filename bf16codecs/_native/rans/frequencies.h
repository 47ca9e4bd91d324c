#pragma once

#include <cstddef>
#include <cstdint>

namespace bf16codecs {

inline constexpr unsigned kWideBits = 12;

// log2(x) in units of 2^-16, rounded down, for x >= 1; above 4096 only the 12 leading bits of x
// count. Integers alone, because the encoder's choices depend on it and its bytes must be the same
// on every platform.
uint32_t log2_fixed(uint32_t x);

// Turns counts into frequencies of at least 1 whose sum is 2^bits, with nearly the smallest
// coded size.
//
// counts[0, n) are at least 1 and sum to total; 2 <= n <= 2^bits.
void normalize(const uint32_t* counts, size_t n, uint64_t total, unsigned bits,
               uint16_t* frequencies);

// Size of coding every symbol with its order-0 entropy, in units of 2^-16 bit.
uint64_t entropy_size(const uint32_t counts[256]);

// Size of coding each counts[i] times with frequencies[i] of 2^bits, in units of 2^-16 bit.
uint64_t coded_size(const uint32_t* counts, const uint16_t* frequencies, size_t n, unsigned bits);

}  // namespace bf16codecs
