#pragma once

// Frames on the kernels for CUDA, in lockstep, compared with the processor's decoder.

#include "check.h"
#include "codec.h"
#include "format/frame.h"

namespace bf16codecs::test {

// Checks that each block has the bytes, or the verdict, that the processor's decoder gives: with
// threads in either order, and in place, too, where they are differences to a base, whatever that
// is. Throws CorruptDataError for a model that is none.
void compare_on_device(const FrameIndex& index, const uint8_t* frame, const Bytes& base,
                       const Zstd* zstd);

}  // namespace bf16codecs::test
