#pragma once

#include <cstddef>
#include <cstdint>

#include "format/frame.h"
#include "options.h"

namespace bf16codecs {

// Bytes that encode() needs to work in: frame_bound(), and more where it may write a model that
// turns out not to pay.
uint64_t encode_room(uint64_t raw_size, const EncodeOptions& options);

// Encodes raw[0, size) to frame, which has encode_room(); returns the frame's size, which is at
// most frame_bound().
size_t encode(const uint8_t* raw, size_t size, const EncodeOptions& options, uint8_t* frame);

// Decodes blocks [first, last), last > first, and with the last block the tail, to `out`, which
// has room for index.raw_size(first, last). `payload` has the frame's bytes from
// index.offsets[first] to index.offsets[last]. Throws CorruptDataError.
void decode_blocks(const FrameIndex& index, const uint8_t* payload, size_t first, size_t last,
                   const Zstd* zstd, uint8_t* out);

}  // namespace bf16codecs
