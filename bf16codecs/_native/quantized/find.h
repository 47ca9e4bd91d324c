#pragma once

// Finds out whether items lie on a grid, by samples.

#include <cstddef>
#include <cstdint>
#include <optional>

#include "quantized/format.h"
#include "quantized/scales.h"

namespace bf16codecs::quantized {

struct Found {
  Grid grid;
  Kind kind;
};

// `row` is the number of items in a row of the array, 0 if it is not known. For plain weights this
// takes 1 to 3 us.
std::optional<Found> find(const Layout& layout, const uint8_t* items, size_t n, size_t row);

}  // namespace bf16codecs::quantized
