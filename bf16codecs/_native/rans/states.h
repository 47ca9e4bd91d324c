#pragma once

// The lanes' first states as they stand in a payload (docs/format_tiles.md, "Payload of a block").

#include <cstddef>
#include <cstdint>

namespace bf16codecs {

// First states as bits: writes them to out and returns their end; out has room for 5 bytes a lane.
uint8_t* write_states(const uint32_t* x, size_t lanes, uint8_t* out);

// Reads them; returns their end, or null if they do not end before `end` or have an unused bit.
const uint8_t* read_states(const uint8_t* p, const uint8_t* end, size_t lanes, uint32_t* x);

}  // namespace bf16codecs
