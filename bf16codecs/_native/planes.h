#pragma once

#include <cstddef>
#include <cstdint>

#include "format/constants.h"

namespace bf16codecs {

// How an item's bytes become planes (docs/format.md, "Element layout").
struct Layout {
  DType dtype = DType::bfloat16;
  bool by_byte = false;  // not rotated

  size_t planes() const { return item_size(dtype); }
  bool is_rotated16() const { return planes() == 2 && !by_byte; }
};

// Splits n items into planes[0 ... w - 1], most significant first.
void split_planes(const Layout& layout, const uint8_t* items, size_t n, uint8_t* const planes[]);

// The inverse.
void merge_planes(const Layout& layout, const uint8_t* const planes[], size_t n, uint8_t* items);

}  // namespace bf16codecs
