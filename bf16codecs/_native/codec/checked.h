#pragma once

// Checks of calls, before they are carried out. The bindings and the C API share them.

#include <cstddef>
#include <cstdint>
#include <span>

#include "codec.h"

namespace bf16codecs {

// Throws std::invalid_argument unless a frame can have this many steps.
void check_steps(unsigned steps);

// Throws std::invalid_argument unless the options fit together, fit `size` bytes, and fit the base.
void check_request(const EncodeOptions& options, size_t size, OptionalBytes base);

// Reads the head of a frame, given all of its bytes and no others. Throws as read_index() and
// check_frame_size() do.
FrameIndex read_whole(std::span<const uint8_t> frame);

// Throws BaseMismatchError if the frame needs a base and `base` is not the frame's.
void check_outside_base(const FrameIndex& index, OptionalBytes base);

// Decodes a whole frame, whose base was checked, as decode_frame() does.
void decode_whole(const FrameIndex& index, std::span<const uint8_t> frame, const Zstd* zstd,
                  OptionalBytes base, uint8_t* out);

// Throws std::out_of_range unless there are blocks [first, last), all of one version.
void check_blocks(const FrameIndex& index, uint64_t first, uint64_t last);

// Throws TruncatedDataError or std::invalid_argument unless blocks [first, last) have `size` bytes.
void check_payload_size(const FrameIndex& index, size_t first, size_t last, size_t size);

// Decodes blocks [first, last), which must exist, as decode_blocks() does. `payload` has their
// bytes, and `base` the items with the same indices in the base or the parent. Throws
// TruncatedDataError for fewer bytes, std::invalid_argument for more, and BaseMismatchError for
// another base than the blocks'.
void decode_range(const FrameIndex& index, std::span<const uint8_t> payload, size_t first,
                  size_t last, const Zstd* zstd, OptionalBytes base, uint8_t* out,
                  UndoLog* log = nullptr);

// Throws BaseMismatchError unless `base` has the items of blocks [first, last), which must exist,
// as the base that the frame was encoded with had them. Blocks without a base agree with anything.
void check_base_range(const FrameIndex& index, size_t first, size_t last,
                      std::span<const uint8_t> base);

}  // namespace bf16codecs
