#pragma once

#include <cstddef>
#include <cstdint>

#include "format/frame.h"
#include "options.h"
#include "undo_log.h"

namespace bf16codecs {

// Bytes that encode() needs to work in: frame_bound(), and more where it may write a model that
// turns out not to pay.
uint64_t encode_room(uint64_t raw_size, const EncodeOptions& options);

// Encodes raw[0, size) to frame, which has encode_room(); returns the frame's size, which is at
// most frame_bound(). With options.steps > 1, which must divide the size into whole items, these
// are versions. With a base, of `size` bytes too, the frame has differences to it.
size_t encode(const uint8_t* raw, size_t size, const EncodeOptions& options, const uint8_t* base,
              uint8_t* frame);

// Throws BaseMismatchError unless `base` is that of the frame, which needs one.
void check_base(const FrameIndex& index, const uint8_t* base, size_t size);

// The same for the bytes of blocks [first, last) of it.
void check_base_blocks(const FrameIndex& index, const uint8_t* base, size_t first, size_t last);

// Decodes a whole frame to `out`, which has room for its raw size. `payload` has the frame's bytes
// from index.offsets[0] on; `base` is that of a frame that needs one, checked, and may be `out`.
// Throws CorruptDataError.
void decode_frame(const FrameIndex& index, const uint8_t* payload, const Zstd* zstd,
                  const uint8_t* base, uint8_t* out);

// Decodes blocks [first, last), last > first, of one version, and with the last block the tail, to
// `out`, which has room for index.raw_size(first, last). `payload` has the frame's bytes from
// index.offsets[first] to index.offsets[last]; `base` the items with the same indices in the base
// or the parent, if the version has one, checked, and may be `out`. Throws CorruptDataError.
//
// With a log, a block that fails is not overwritten, and the log has what the others have
// overwritten. Then a base outside of the frame is checked here, block by block, while it is in the
// cache; throws BaseMismatchError.
void decode_blocks(const FrameIndex& index, const uint8_t* payload, size_t first, size_t last,
                   const Zstd* zstd, const uint8_t* base, uint8_t* out, UndoLog* log = nullptr);

}  // namespace bf16codecs
