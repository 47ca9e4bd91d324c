#pragma once

#include <cstddef>
#include <cstdint>

// Run lengths, as docs/format_rle.md has them.
namespace bf16codecs::run_length {

// The most bytes that encode() makes of n.
constexpr uint64_t bound(uint64_t n) {
  return n + n / 2 + n % 2;
}

// Encodes raw[0, n) to `out`, which has bound(n); returns the encoded size.
size_t encode(const uint8_t* raw, size_t n, uint8_t* out);

// The decoded size. Throws CorruptDataError or TruncatedDataError.
uint64_t decoded_size(const uint8_t* encoded, size_t size);

// Decodes to out[0, room). Throws as decoded_size() does, and CorruptDataError if it is another
// than `room`: the bytes may have changed since it was asked for.
void decode(const uint8_t* encoded, size_t size, uint8_t* out, uint64_t room);

}  // namespace bf16codecs::run_length
