#pragma once

// The items that grids are searched for, and places in them.

#include <cstddef>
#include <cstdint>

#include "quantized/format.h"

namespace bf16codecs::quantized {

// Items and the rows that they are in.
struct Array {
  const Layout& layout;
  const uint8_t* items;
  size_t n;
  size_t row;  // at least 1
  size_t rows;
  size_t& failures;  // searches in vain that are left

  void load(size_t first, size_t count, float* values) const;
  // Items first, first + step, ...
  void load(size_t first, size_t step, size_t count, float* values) const;
  Array with_failures(size_t& others) const { return {layout, items, n, row, rows, others}; }
};

}  // namespace bf16codecs::quantized
