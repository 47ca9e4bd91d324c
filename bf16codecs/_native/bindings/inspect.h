#pragma once

// Descriptions of frames for Python.

#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>

#include "format/frame.h"
#include "quantized/format.h"

namespace bf16codecs {

// The parent of each version; None for versions that are coded alone.
nanobind::list parents(const FrameIndex& index);

// What the weights of a block were quantised to, or None, from its first kBlockGridBytes bytes.
// `row` is the number of items in a row of the array, 0 if it has none.
inline constexpr size_t kBlockGridBytes = kMaxItemSize + 4 + quantized::kGridBytes;
nanobind::object block_grid(const FrameIndex& index, size_t block, nanobind::handle prefix,
                            size_t row);

// bf16codecs.inspect()
nanobind::dict inspect(const uint8_t* bytes, size_t size);

}  // namespace bf16codecs
