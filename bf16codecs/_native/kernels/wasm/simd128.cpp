// Kernels for WebAssembly's vectors of 128 bits: those that decoding needs (docs/format.md,
// "Checksum" and "Element layout"). They differ from scalar.cpp in that they take 16 items at a
// time; the scalar kernels do the last ones. Each group of vector instructions is preceded by the
// scalar formula that it computes.

#include "kernels/wasm/simd128.h"

namespace bf16codecs {
namespace {

void checksum(ChecksumState& state, const uint8_t* bytes, size_t stripes) {
  // a[i] has lanes 2 i and 2 i + 1 of the sixteen.
  v128_t a[8], c[8];
  BF16CODECS_UNROLL
  for (unsigned i = 0; i < 8; ++i) {
    a[i] = wasm_v128_load(state.a + 2 * i), c[i] = wasm_v128_load(state.c + 2 * i);
  }
  for (; stripes != 0; --stripes, bytes += 128) {
    BF16CODECS_UNROLL
    for (unsigned i = 0; i < 8; ++i) {
      // a += v, c = rotl(c, 23) + a
      a[i] = wasm_i64x2_add(a[i], wasm_v128_load(bytes + 16 * i));
      const v128_t turned = wasm_v128_or(wasm_i64x2_shl(c[i], 23), wasm_u64x2_shr(c[i], 41));
      c[i] = wasm_i64x2_add(turned, a[i]);
    }
  }
  BF16CODECS_UNROLL
  for (unsigned i = 0; i < 8; ++i) {
    wasm_v128_store(state.a + 2 * i, a[i]), wasm_v128_store(state.c + 2 * i, c[i]);
  }
}

void split16(const uint8_t* items, size_t n, uint8_t* high, uint8_t* low) {
  size_t i = 0;
  for (; i + 16 <= n; i += 16) {
    const v128_t v = wasm_v128_load(items + 2 * i), w = wasm_v128_load(items + 2 * i + 16);
    // item << 1 | item >> 15
    const v128_t x = wasm_v128_or(wasm_i16x8_shl(v, 1), wasm_u16x8_shr(v, 15));
    const v128_t y = wasm_v128_or(wasm_i16x8_shl(w, 1), wasm_u16x8_shr(w, 15));
    wasm_v128_store(high + i, odd8(x, y));
    wasm_v128_store(low + i, even8(x, y));
  }
  if (i < n) kScalarKernels.split16(items + 2 * i, n - i, high + i, low + i);
}

void merge16(const uint8_t* high, const uint8_t* low, size_t n, uint8_t* items) {
  size_t i = 0;
  for (; i + 16 <= n; i += 16) {
    store_merged(wasm_v128_load(high + i), wasm_v128_load(low + i), items + 2 * i);
  }
  if (i < n) kScalarKernels.merge16(high + i, low + i, n - i, items + 2 * i);
}

// All other kernels are the scalar ones, which the compiler may vectorize.
Kernels make_kernels() {
  Kernels kernels = kScalarKernels;
  kernels.name = "simd128";
  kernels.checksum = checksum;
  kernels.split16 = split16;
  kernels.merge16 = merge16;
  kernels.pairs_decode = simd128_pairs_decode;
  kernels.pairs_decode16 = simd128_pairs_decode16;
  kernels.tiles = &kSimd128TileKernels;
  kernels.sparse = &kSimd128SparseKernels;
  return kernels;
}

}  // namespace

const Kernels kSimd128Kernels = make_kernels();

}  // namespace bf16codecs
