#pragma once

// Counts of symbols, bytes and words.

#include <cstddef>
#include <cstdint>

namespace bf16codecs {

// Counts the n symbols of a plane.
void histogram(const uint8_t* plane, size_t n, uint32_t counts[256]);

// Counts a sample of a plane that is longer than 16,384 symbols, 32 ranges of 256 that are spread
// evenly, and all symbols of a shorter one. Returns the number of symbols that were counted. A
// table from 8,192 symbols of 262,144 costs 0.001 bits per symbol more than a table from all of
// them, and takes a thirtieth of the time (docs/design_codecs.md, "Which plane is coded, and by
// which table").
size_t sample_histogram(const uint8_t* plane, size_t n, uint32_t counts[256]);

// Add to `counts` how often each value occurs among the bytes, or the little-endian 16-bit words,
// at data[0], data[stride], and so on, as far as they lie within `size` bytes. Words may overlap:
// with a stride of 1 they are all pairs of neighbouring bytes.
void count_bytes(const uint8_t* data, size_t size, size_t stride, uint64_t counts[256]);
void count_words(const uint8_t* data, size_t size, size_t stride, uint64_t counts[65536]);

}  // namespace bf16codecs
