#pragma once

// The lanes' first states in payloads of the tiles and difference modes (docs/format_tiles.md,
// "Payload of a block"): the widths of their high halves, then their low halves, then the bits of
// their high halves.

#include <cstddef>
#include <cstdint>

namespace bf16codecs {

// Writes first states to out, which has room for 5 bytes a lane, and returns their end.
uint8_t* write_states(const uint32_t* x, size_t lanes, uint8_t* out);

// Reads first states; returns their end, or null if they do not end before `end` or an unused bit
// is set.
const uint8_t* read_states(const uint8_t* p, const uint8_t* end, size_t lanes, uint32_t* x);

}  // namespace bf16codecs
