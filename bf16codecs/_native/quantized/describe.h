#pragma once

#include <string>

#include "quantized/format.h"

namespace bf16codecs::quantized {

// What weights were, for people: "FP8 E4M3, tiles of 128 x 128". `row` is the number of items in a
// row of the array, 0 if it is not known.
std::string describe(const Grid& grid, size_t row = 0);

}  // namespace bf16codecs::quantized
