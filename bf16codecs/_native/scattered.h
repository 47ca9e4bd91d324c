#pragma once

// Places at which arrays are sampled.

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace bf16codecs {

// Place k in [0, count), as if at random: equal distances, and multiples of the golden ratio, meet
// the same rows and columns again and again in arrays of some numbers of rows. No place beyond
// 2^32 - 1.
inline size_t scattered_place(size_t k, size_t count) {
  uint64_t mixed = (k + 1) * 0x9E3779B97F4A7C15;
  mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9;
  mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB;
  const uint64_t spread = (mixed ^ mixed >> 31) >> 32;
  return static_cast<size_t>(spread * std::min<uint64_t>(count, UINT32_MAX) >> 32);
}

// Calls function(symbols, length) for samples of a plane, one at a scattered place of each part.
template <typename Function>
void for_each_sample(const uint8_t* plane, size_t n, size_t samples, size_t length,
                     Function function) {
  const size_t part = n / samples;
  for (size_t k = 0; k < samples; ++k) {
    function(plane + part * k + scattered_place(k, part - length + 1), length);
  }
}

}  // namespace bf16codecs
