#pragma once

// Opened frames and directories, and their descriptions.

#include "c_api/guard.h"
#include "format/frame.h"
#include "format/growing.h"

struct bf16codecs_frame {
  bf16codecs::FrameIndex index;
};

struct bf16codecs_growing {
  bf16codecs::GrowingIndex index;
};

namespace bf16codecs::c_api {

bf16codecs_info info_of(const FrameIndex& index);
bf16codecs_info info_of(const GrowingIndex& index);

// Decoded size of blocks [first, last), which may exceed size_t on 32-bit machines.
uint64_t raw_size_of(const FrameIndex& index, uint64_t first, uint64_t last);

}  // namespace bf16codecs::c_api
