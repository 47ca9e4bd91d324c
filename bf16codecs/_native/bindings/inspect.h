#pragma once

// What Python is told of a frame.

#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>

#include "format/frame.h"

namespace bf16codecs {

// Of each version the one that it is coded against; None of those that are coded alone.
nanobind::list parents(const FrameIndex& index);

// bf16codecs.inspect()
nanobind::dict inspect(const uint8_t* bytes, size_t size);

}  // namespace bf16codecs
