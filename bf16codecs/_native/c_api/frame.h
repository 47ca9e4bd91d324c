#pragma once

// What bf16codecs_open() makes, and what is told of it.

#include "c_api/guard.h"
#include "format/frame.h"
#include "format/growing.h"

struct bf16codecs_frame {
  bf16codecs::FrameIndex index;
};

namespace bf16codecs::c_api {

bf16codecs_info info_of(const FrameIndex& index);
bf16codecs_info info_of(const GrowingIndex& index);

// The directory of a growing frame. Throws std::out_of_range if it has no such version.
GrowingIndex directory_with(const void* directory, size_t size, uint64_t number);

// Decoded bytes of blocks [first, last), which need not fit the memory of a 32-bit machine.
uint64_t raw_size_of(const FrameIndex& index, uint64_t first, uint64_t last);

}  // namespace bf16codecs::c_api
