#pragma once

// Items as numbers.

#include <cstddef>
#include <cstdint>

#include "quantized/format.h"

namespace bf16codecs::quantized {

// Items of a layout that has grids, as binary32.
void load_values(const Layout& layout, const uint8_t* items, size_t n, float* values);

}  // namespace bf16codecs::quantized
