#pragma once

// Items as planes of bytes (docs/format.md, "Element layout").

#include <cstddef>
#include <cstdint>

#include "format/layout.h"

namespace bf16codecs {

// Splits n items, rotated if the layout says so, into planes[0 ... w - 1], the most significant
// first.
void split_planes(const Layout& layout, const uint8_t* items, size_t n, uint8_t* const planes[]);

// Merges planes to items again.
void merge_planes(const Layout& layout, const uint8_t* const planes[], size_t n, uint8_t* items);

}  // namespace bf16codecs
