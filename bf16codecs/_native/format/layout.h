#pragma once

#include <cstddef>

#include "format/constants.h"

namespace bf16codecs {

// How an item's bytes become planes (docs/format.md, "Element layout").
struct Layout {
  DType dtype = DType::bfloat16;
  bool by_byte = false;  // not rotated

  size_t planes() const { return item_size(dtype); }
  bool is_rotated16() const { return planes() == 2 && !by_byte; }
};

}  // namespace bf16codecs
