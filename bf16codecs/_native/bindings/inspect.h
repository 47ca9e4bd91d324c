#pragma once

// Descriptions of frames for Python.

#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>

#include "format/frame.h"

namespace bf16codecs {

// The parent of each version; None for versions that are coded alone.
nanobind::list parents(const FrameIndex& index);

// bf16codecs.inspect()
nanobind::dict inspect(const uint8_t* bytes, size_t size);

}  // namespace bf16codecs
