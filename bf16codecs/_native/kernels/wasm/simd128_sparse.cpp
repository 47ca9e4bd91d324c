// Kernels of sparse planes for WebAssembly's vectors: kernels/sparse_halves.h.

#include "kernels/sparse_halves.h"
#include "kernels/wasm/simd128.h"

namespace bf16codecs {
namespace {

struct Bytes16 {
  v128_t v;

  static BF16CODECS_INLINE Bytes16 load(const uint8_t* p) { return {wasm_v128_load(p)}; }
  static BF16CODECS_INLINE void store(uint8_t* p, Bytes16 a) { wasm_v128_store(p, a.v); }
  static BF16CODECS_INLINE Bytes16 splat(uint8_t byte) { return {wasm_u8x16_splat(byte)}; }
  static BF16CODECS_INLINE Bytes16 halves(uint64_t lower, uint64_t upper) {
    return {wasm_u64x2_make(lower, upper)};
  }
  static BF16CODECS_INLINE uint64_t lower(Bytes16 a) { return wasm_u64x2_extract_lane(a.v, 0); }
  static BF16CODECS_INLINE uint64_t upper(Bytes16 a) { return wasm_u64x2_extract_lane(a.v, 1); }
  static BF16CODECS_INLINE Bytes16 equal(Bytes16 a, Bytes16 b) { return {wasm_i8x16_eq(a.v, b.v)}; }
  static BF16CODECS_INLINE unsigned mask(Bytes16 a) { return wasm_i8x16_bitmask(a.v); }
  static BF16CODECS_INLINE Bytes16 shuffle(Bytes16 a, Bytes16 indices) {
    return {wasm_i8x16_swizzle(a.v, indices.v)};
  }
};

BF16CODECS_INLINE Bytes16 operator|(Bytes16 a, Bytes16 b) {
  return {wasm_v128_or(a.v, b.v)};
}
BF16CODECS_INLINE Bytes16 operator^(Bytes16 a, Bytes16 b) {
  return {wasm_v128_xor(a.v, b.v)};
}
BF16CODECS_INLINE Bytes16 operator&(Bytes16 a, Bytes16 b) {
  return {wasm_v128_and(a.v, b.v)};
}

void expand(SparseDecoder& d, const uint8_t* first, size_t n, uint8_t* plane) {
  expand_halves<Bytes16>(d, first, n, plane);
}

size_t pack(SparseEncoder& e, const uint8_t* first, const uint8_t* plane, size_t n) {
  return pack_halves<Bytes16>(e, first, plane, n);
}

}  // namespace

const SparseKernels kSimd128SparseKernels = {.expand = expand, .pack = pack};

}  // namespace bf16codecs
