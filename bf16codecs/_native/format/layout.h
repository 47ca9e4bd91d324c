#pragma once

#include <cstddef>

#include "format/constants.h"

namespace bf16codecs {

// The mapping of an item's bytes to planes (docs/format.md, "Element layout").
struct Layout {
  DType dtype = DType::bfloat16;
  bool by_byte = false;  // planes are the item's bytes, without rotation

  size_t planes() const { return item_size(dtype); }
  bool is_rotated16() const { return planes() == 2 && !by_byte; }
};

}  // namespace bf16codecs
