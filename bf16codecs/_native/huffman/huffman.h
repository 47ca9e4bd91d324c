#pragma once

#include <cstddef>
#include <cstdint>

#include "workspace.h"

namespace bf16codecs {

// Bytes that a decoder may write past the end of a plane: the caller's buffer has room for them.
inline constexpr size_t kPlaneSlack = 64;

// Codes one plane of one block (docs/format.md, "Huffman plane"). `plane` has n symbols,
// `histogram` their exact counts; at least two symbols occur. Writes the payload to `out` and
// returns its size, or 0 if it would need more than `capacity` bytes; never writes past out +
// capacity.
size_t huffman_encode(const uint8_t* plane, size_t n, const uint32_t histogram[256], uint8_t* out,
                      size_t capacity, Scratch& code_pairs);

// Memory that the caller will read and write after decoding. The decoder prefetches it, which makes
// merging a plane from memory twice as fast.
struct UsedNext {
  const uint8_t* read = nullptr;
  size_t read_size = 0;
  const uint8_t* write = nullptr;
  size_t write_size = 0;
};

// Decodes n symbols from payload[0, size) into plane, which has room for n + kPlaneSlack
// bytes. Reads nothing outside the payload. Throws CorruptDataError.
void huffman_decode(const uint8_t* payload, size_t size, uint8_t* plane, size_t n,
                    const UsedNext& next = {});

}  // namespace bf16codecs
