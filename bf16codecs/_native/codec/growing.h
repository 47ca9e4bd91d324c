#pragma once

// Decoding of whole growing frames (docs/format_growing.md).

#include <cstddef>
#include <cstdint>
#include <vector>

#include "format/growing.h"
#include "options.h"

namespace bf16codecs {

// Reads the heads of all frames in a growing frame, given all of their bytes. Does not look at
// bytes after the last one. Throws as read_growing_frame() does.
std::vector<FrameIndex> read_growing_frames(const GrowingIndex& index, const uint8_t* bytes,
                                            size_t size);

// Decodes all versions to `out`, which has room for them. Throws CorruptDataError.
void decode_growing(const GrowingIndex& index, const std::vector<FrameIndex>& frames,
                    const uint8_t* bytes, const Zstd* zstd, uint8_t* out);

}  // namespace bf16codecs
