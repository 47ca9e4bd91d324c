#pragma once

// Items as keys, which order them by magnitude (docs/format_scale.md, "Keys").

#include <cstddef>
#include <cstdint>

#include "format/layout.h"

namespace bf16codecs::grid {

inline constexpr unsigned kScaleSteps = 16;  // scales in an octave

// The leading (at most 16) bits of a rotated item: an exponent field, then fraction bits.
struct KeyFormat {
  unsigned bits;      // of the key
  unsigned fraction;  // of these, after the exponent; the sign is the lowest unless cut off

  explicit KeyFormat(const Layout& layout);
  int max_scale() const { return static_cast<int>(kScaleSteps << (bits - fraction)) - 1; }
  uint16_t mask() const { return static_cast<uint16_t>((1u << bits) - 1); }
};

// Whether models can describe the items: items that are split by byte are not rotated, and have no
// keys.
inline bool has_keys(const Layout& layout) {
  return !layout.by_byte;
}

// The number of planes, from plane 0 on, that keys come from and models code.
inline size_t key_planes(const Layout& layout) {
  return layout.planes() == 1 ? 1 : 2;
}

void load_keys(const Layout& layout, const uint8_t* items, size_t n, uint16_t* keys);

// Whether differences of such items are numbers of the dtype even where they are far smaller than
// the items: that needs a wide exponent.
inline bool has_difference_keys(const Layout& layout) {
  return has_keys(layout) && (layout.dtype == DType::bfloat16 || layout.dtype == DType::float32 ||
                              layout.dtype == DType::float64);
}

// Loads keys of the distances between items and those of a base, without a sign. Keys are at least
// 2, which is not zero: means of magnitudes leave zeros out, but must count items that did not
// change. Distances that are infinite or not a number count as 0.
void load_difference_keys(const Layout& layout, const uint8_t* base, const uint8_t* items, size_t n,
                          uint16_t* keys);

}  // namespace bf16codecs::grid
