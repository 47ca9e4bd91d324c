#pragma once

// Canonical prefix codes and their tables (docs/format.md, "Huffman plane", "Code table").

#include <cstddef>
#include <cstdint>

#include "kernels/huffman_pack.h"

namespace bf16codecs {

// Limits of the format. Eleven bits cost 0.002 bits per value more than twelve, and halve the
// decoder's table.
inline constexpr unsigned kMaxCodeLength = kLongestCode;
inline constexpr size_t kMaxCodeTableBytes = 128;

// Finds the lengths of an optimal prefix code of at most kMaxCodeLength bits, 0 for symbols that do
// not occur. At least two symbols must occur. It uses integers alone, so that the lengths are the
// same on every platform.
void limited_code_lengths(const uint32_t histogram[256], uint8_t lengths[256]);

// The symbols that have a code, in the order of their codes: by length, then by value.
struct CanonicalOrder {
  explicit CanonicalOrder(const uint8_t lengths[256]);
  uint8_t symbols[256];
  unsigned count;
};

// Writes the lengths to out, at most kMaxCodeTableBytes; returns the bytes written.
size_t write_code_lengths(const uint8_t lengths[256], uint8_t* out);

// Reads a complete code's lengths; returns the bytes read. Throws CorruptDataError.
size_t read_code_lengths(const uint8_t* bytes, size_t size, uint8_t lengths[256]);

}  // namespace bf16codecs
