// Kernels of sparse planes for NEON: kernels/sparse_halves.h.

#include "kernels/arm/neon.h"
#include "kernels/sparse_halves.h"

namespace bf16codecs {
namespace {

struct Bytes16 {
  uint8x16_t v;

  static BF16CODECS_INLINE Bytes16 load(const uint8_t* p) { return {vld1q_u8(p)}; }
  static BF16CODECS_INLINE void store(uint8_t* p, Bytes16 a) { vst1q_u8(p, a.v); }
  static BF16CODECS_INLINE Bytes16 splat(uint8_t byte) { return {vdupq_n_u8(byte)}; }
  static BF16CODECS_INLINE Bytes16 halves(uint64_t lower, uint64_t upper) {
    return {vreinterpretq_u8_u64(vcombine_u64(vcreate_u64(lower), vcreate_u64(upper)))};
  }
  static BF16CODECS_INLINE uint64_t lower(Bytes16 a) {
    return vgetq_lane_u64(vreinterpretq_u64_u8(a.v), 0);
  }
  static BF16CODECS_INLINE uint64_t upper(Bytes16 a) {
    return vgetq_lane_u64(vreinterpretq_u64_u8(a.v), 1);
  }
  static BF16CODECS_INLINE Bytes16 equal(Bytes16 a, Bytes16 b) { return {vceqq_u8(a.v, b.v)}; }
  // Each byte keeps the bit of its place in its half, and a half's sum has all eight.
  static BF16CODECS_INLINE unsigned mask(Bytes16 a) {
    constexpr uint64_t kBits = 0x8040201008040201;
    const uint8x16_t bits = vandq_u8(a.v, halves(kBits, kBits).v);
    return static_cast<unsigned>(vaddv_u8(vget_low_u8(bits)) | vaddv_u8(vget_high_u8(bits)) << 8);
  }
  static BF16CODECS_INLINE Bytes16 shuffle(Bytes16 a, Bytes16 indices) {
    return {vqtbl1q_u8(a.v, indices.v)};
  }
};

BF16CODECS_INLINE Bytes16 operator|(Bytes16 a, Bytes16 b) {
  return {vorrq_u8(a.v, b.v)};
}
BF16CODECS_INLINE Bytes16 operator^(Bytes16 a, Bytes16 b) {
  return {veorq_u8(a.v, b.v)};
}
BF16CODECS_INLINE Bytes16 operator&(Bytes16 a, Bytes16 b) {
  return {vandq_u8(a.v, b.v)};
}

void expand(SparseDecoder& d, const uint8_t* first, size_t n, uint8_t* plane) {
  expand_halves<Bytes16>(d, first, n, plane);
}

size_t pack(SparseEncoder& e, const uint8_t* first, const uint8_t* plane, size_t n) {
  return pack_halves<Bytes16>(e, first, plane, n);
}

}  // namespace

const SparseKernels kNeonSparseKernels = {.expand = expand, .pack = pack};

}  // namespace bf16codecs
