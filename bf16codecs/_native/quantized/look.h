#pragma once

// A look at a few items, which is all that plain weights are charged for: on a grid, fewer of the
// significands in a group differ from each other.

#include <cstddef>

#include "quantized/array.h"

namespace bf16codecs::quantized {

// The items that are looked at together.
inline constexpr size_t kLookItems = 32;

// Looks at items, `step` apart, at `places` places; returns whether fewer significands differ than
// in plain weights. Zeros, as in pruned ones, have none.
bool is_suspicious(const Array& array, size_t step, size_t places);

}  // namespace bf16codecs::quantized
