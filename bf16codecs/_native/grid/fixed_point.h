#pragma once

// Fixed-point powers and logarithms (docs/format_scale.md, "Fixed-point functions"). They use
// integers alone: encoders and decoders derive tables from them, which must agree on every
// platform.

#include <bit>
#include <cstdint>

namespace bf16codecs::grid {

inline constexpr int kOctave = 4096;  // one octave: a factor of two

// 2^(i / 8) in 4096ths.
inline constexpr uint32_t kEighths[8] = {4096, 4467, 4871, 5312, 5793, 6317, 6889, 7512};
inline constexpr int kHalfLog2E = 2955;  // log2(e) / 2

namespace detail {
// 2^(2^-(i+1)) x 2^30, rounded, for i = 0 ... 11.
inline constexpr uint32_t kRoots[12] = {1518500250, 1276901417, 1170923762, 1121280436,
                                        1097253708, 1085434106, 1079572136, 1076653033,
                                        1075196443, 1074468888, 1074105294, 1073923544};
}  // namespace detail

// 2^(x / 4096) x 2^30 for 0 <= x < 4096, to about 2^-28.
constexpr uint32_t exp2_fraction(unsigned x) {
  uint64_t value = uint64_t{1} << 30;
  for (unsigned i = 0; i < 12; ++i) {
    if ((x >> (11 - i)) & 1) value = (value * detail::kRoots[i]) >> 30;
  }
  return static_cast<uint32_t>(value);
}

// 2^(x / 4096), rounded down, for 0 <= x < 32 x 4096.
constexpr uint64_t exp2_floor(int x) {
  const unsigned whole = static_cast<unsigned>(x) / kOctave;
  return (uint64_t{exp2_fraction(static_cast<unsigned>(x) % kOctave)} << whole) >> 30;
}

// 4096 log2(x), rounded down, for x >= 1.
constexpr int log2_floor(uint64_t x) {
  const int whole = 63 - std::countl_zero(x);
  // In [1, 2) with 31 fraction bits; each squaring gives the next bit of the logarithm.
  uint64_t y = whole <= 31 ? x << (31 - whole) : x >> (whole - 31);
  int fraction = 0;
  for (int i = 0; i < 12; ++i) {
    y = (y * y) >> 31;
    fraction *= 2;
    if (y >> 32) {
      y >>= 1;
      ++fraction;
    }
  }
  return whole * kOctave + fraction;
}

}  // namespace bf16codecs::grid
