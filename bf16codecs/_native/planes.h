#pragma once

#include <cstddef>
#include <cstdint>

#include "format/layout.h"

namespace bf16codecs {

// Splits n items into planes[0 ... w - 1], most significant first.
void split_planes(const Layout& layout, const uint8_t* items, size_t n, uint8_t* const planes[]);

// The inverse.
void merge_planes(const Layout& layout, const uint8_t* const planes[], size_t n, uint8_t* items);

}  // namespace bf16codecs
