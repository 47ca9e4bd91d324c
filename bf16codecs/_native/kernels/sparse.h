#pragma once

// The kernels of sparse planes (docs/format.md, "Sparse plane"). Zeros are items whose symbol in
// plane 0 is a given one.

#include <cstddef>
#include <cstdint>

namespace bf16codecs {

// Bytes that these kernels may read or write past what they use, because they take whole vectors.
inline constexpr size_t kSparseMargin = 64;

struct SparseDecoder {
  uint8_t zero;            // the symbol of zeros in plane 0
  uint8_t value;           // that of zeros in this plane; bit 0 is 0 if they have sign bits
  bool has_signs;          // zeros have sign bits
  const uint8_t* symbols;  // the next symbol of an item that is no zero
  const uint8_t* signs;    // sign bits
  size_t sign;             // the next one of them
};

struct SparseEncoder {
  uint8_t zero;
  uint8_t value;     // of zeros without a sign; bit 0 is 0
  uint8_t* symbols;  // where the next symbol of an item that is no zero goes
  uint8_t* signs;    // sign bits, those from `sign` on 0
  size_t sign;       // the next one of them
};

struct SparseKernels {
  // Decodes n symbols of a plane, whose symbols in plane 0 are `first`. At most n of d.symbols, and
  // n bits from d.sign on, are used, and kSparseMargin bytes after each must be readable; without
  // sign bits, none of d.signs are.
  void (*expand)(SparseDecoder& d, const uint8_t* first, size_t n, uint8_t* plane);

  // Encodes n symbols of a plane: adds the symbols of items that are no zeros to e.symbols, and a
  // bit for each zero to e.signs: whether its symbol is value + 1. Returns how many zeros have a
  // symbol other than value and value + 1. Both have room for what n items may need and
  // kSparseMargin bytes more.
  size_t (*pack)(SparseEncoder& e, const uint8_t* first, const uint8_t* plane, size_t n);
};

extern const SparseKernels kScalarSparseKernels;
#if defined(__x86_64__) || defined(_M_X64)
extern const SparseKernels kAvx2SparseKernels, kAvx512Vbmi2SparseKernels;
#endif
#if defined(__AARCH64EL__) || defined(_M_ARM64)
extern const SparseKernels kNeonSparseKernels;
#endif
#if defined(__wasm_simd128__)
extern const SparseKernels kSimd128SparseKernels;
#endif

}  // namespace bf16codecs
