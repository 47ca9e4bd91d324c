#pragma once

// Items of a few different values.

#include <optional>

#include "quantized/array.h"
#include "quantized/find.h"

namespace bf16codecs::quantized {

// The palette of at most 16 different items in all, with a scale that brings the levels near 1.
std::optional<Found> find_palette(const Array& array);

}  // namespace bf16codecs::quantized
