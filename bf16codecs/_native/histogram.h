#pragma once

#include <cstddef>
#include <cstdint>

namespace bf16codecs {

// Counts the n symbols of a plane.
void histogram(const uint8_t* plane, size_t n, uint32_t counts[256]);

// The same for a sample of long planes: 32 runs of 256 symbols, spread evenly. Returns how many
// symbols were counted. A table made from 8,192 symbols codes the rest with 0.001 bits a symbol
// more than one made from all, at a thirtieth of the time.
size_t sample_histogram(const uint8_t* plane, size_t n, uint32_t counts[256]);

// Add to `counts` how often each value occurs among the bytes, or the little-endian 16-bit words,
// at data[0], data[stride], and so on, as far as they lie within `size` bytes. Words may overlap:
// with a stride of 1 they are all pairs of neighbouring bytes.
void count_bytes(const uint8_t* data, size_t size, size_t stride, uint64_t counts[256]);
void count_words(const uint8_t* data, size_t size, size_t stride, uint64_t counts[65536]);

}  // namespace bf16codecs
