#pragma once

// Encoding of a block as planes.

#include <cstddef>
#include <cstdint>

#include "block/block.h"
#include "block/code_plane.h"

namespace bf16codecs {

// Memory for the planes of a block and for their payloads.
struct PlaneRoom {
  uint8_t* planes[kMaxItemSize];
  uint8_t* payloads[kMaxItemSize];

  PlaneRoom(size_t width, size_t n, Workspace& workspace);
};

// Writes modes, sizes and payloads of a block; returns its size. A payload may lie where it is
// written already.
size_t write_block(size_t width, size_t n, const CodedPlane coded[], uint8_t* const planes[],
                   uint8_t* const payloads[], uint8_t* out);

// Whether planes after plane 0 may be sparse, and zeros are likely to make them smaller.
bool may_be_sparse(const EncodeOptions& options, const BlockContext& context, size_t n);

// Encodes n items without their base, the first planes with the frame's model if that is smaller
// than each of them alone, all others one by one. `out` and `sum` are as for encode_block().
size_t encode_planes(const EncodeOptions& options, const BlockContext& context,
                     const uint8_t* items, size_t n, uint8_t* out, Checksum* sum);

}  // namespace bf16codecs
