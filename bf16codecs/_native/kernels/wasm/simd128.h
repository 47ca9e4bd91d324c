#pragma once

// Helpers that the kernels for WebAssembly's vectors share, and their declarations. An engine
// compiles or refuses a module as a whole, so that nothing here is compiled for more than the rest
// of the program.

#include <wasm_simd128.h>

#include "kernels/kernels.h"

namespace bf16codecs {

static BF16CODECS_INLINE v128_t zip_low8(v128_t a, v128_t b) {
  return wasm_i8x16_shuffle(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
}
static BF16CODECS_INLINE v128_t zip_high8(v128_t a, v128_t b) {
  return wasm_i8x16_shuffle(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
}
static BF16CODECS_INLINE v128_t even8(v128_t a, v128_t b) {
  return wasm_i8x16_shuffle(a, b, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
}
static BF16CODECS_INLINE v128_t odd8(v128_t a, v128_t b) {
  return wasm_i8x16_shuffle(a, b, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
}

// Rotates 16 items back, given their high and low bytes, and stores them.
static BF16CODECS_INLINE void store_merged(v128_t high, v128_t low, uint8_t* items) {
  const v128_t v = zip_low8(low, high), w = zip_high8(low, high);
  // item >> 1 | item << 15
  wasm_v128_store(items, wasm_v128_or(wasm_u16x8_shr(v, 1), wasm_i16x8_shl(v, 15)));
  wasm_v128_store(items + 16, wasm_v128_or(wasm_u16x8_shr(w, 1), wasm_i16x8_shl(w, 15)));
}

size_t simd128_pairs_decode(PairsDecoder& decoder, const uint8_t* limit, uint8_t* plane,
                            size_t steps);
size_t simd128_pairs_decode16(PairsDecoder& decoder, const uint8_t* limit, const uint8_t* low,
                              uint8_t* items, size_t steps);
void simd128_tiles_decode(TileDecoder& decoder, const TileTable tables[], const uint8_t* classes,
                          size_t steps, uint8_t* symbols);
extern const TileKernels kSimd128TileKernels;

}  // namespace bf16codecs
