// Kernels of sparse planes for AVX2: kernels/sparse_halves.h, with vectors of 128 bits. Shuffles of
// 256 bits would not cross the halves, and as many tables would be looked up.

#include "kernels/sparse_halves.h"
#include "kernels/x86/avx2.h"

namespace bf16codecs {
namespace {

struct Bytes16 {
  __m128i v;

  static BF16CODECS_INLINE Bytes16 load(const uint8_t* p) { return {load16(p)}; }
  static BF16CODECS_INLINE void store(uint8_t* p, Bytes16 a) { store16(p, a.v); }
  static BF16CODECS_INLINE Bytes16 splat(uint8_t byte) {
    return {_mm_set1_epi8(static_cast<char>(byte))};
  }
  static BF16CODECS_INLINE Bytes16 halves(uint64_t lower, uint64_t upper) {
    return {_mm_set_epi64x(static_cast<long long>(upper), static_cast<long long>(lower))};
  }
  static BF16CODECS_INLINE uint64_t lower(Bytes16 a) {
    return static_cast<uint64_t>(_mm_cvtsi128_si64(a.v));
  }
  static BF16CODECS_INLINE uint64_t upper(Bytes16 a) {
    return static_cast<uint64_t>(_mm_extract_epi64(a.v, 1));
  }
  static BF16CODECS_INLINE Bytes16 equal(Bytes16 a, Bytes16 b) {
    return {_mm_cmpeq_epi8(a.v, b.v)};
  }
  static BF16CODECS_INLINE unsigned mask(Bytes16 a) {
    return static_cast<unsigned>(_mm_movemask_epi8(a.v));
  }
  static BF16CODECS_INLINE Bytes16 shuffle(Bytes16 a, Bytes16 indices) {
    return {_mm_shuffle_epi8(a.v, indices.v)};
  }
};

BF16CODECS_INLINE Bytes16 operator|(Bytes16 a, Bytes16 b) {
  return {_mm_or_si128(a.v, b.v)};
}
BF16CODECS_INLINE Bytes16 operator^(Bytes16 a, Bytes16 b) {
  return {_mm_xor_si128(a.v, b.v)};
}
BF16CODECS_INLINE Bytes16 operator&(Bytes16 a, Bytes16 b) {
  return {_mm_and_si128(a.v, b.v)};
}

void expand(SparseDecoder& d, const uint8_t* first, size_t n, uint8_t* plane) {
  expand_halves<Bytes16>(d, first, n, plane);
}

size_t pack(SparseEncoder& e, const uint8_t* first, const uint8_t* plane, size_t n) {
  return pack_halves<Bytes16>(e, first, plane, n);
}

}  // namespace

const SparseKernels kAvx2SparseKernels = {.expand = expand, .pack = pack};

}  // namespace bf16codecs
