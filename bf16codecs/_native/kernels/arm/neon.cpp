// Kernels for NEON that are not of a coder: docs/format.md, "Checksum" and "Element layout", and
// counts. They differ from scalar.cpp in that they take 8 or 16 items at a time; the scalar kernels
// do the last ones. Each group of vector instructions is preceded by the scalar formula that it
// computes.

#include "kernels/arm/neon_delta.h"
#include "kernels/arm/neon_tiles.h"
#include "kernels/bits.h"

namespace bf16codecs {
namespace {

void checksum(ChecksumState& state, const uint8_t* bytes, size_t stripes) {
  // a[i] has lanes 2 i and 2 i + 1 of the sixteen.
  uint64x2_t a[8], c[8];
  BF16CODECS_UNROLL
  for (unsigned i = 0; i < 8; ++i)
    a[i] = vld1q_u64(state.a + 2 * i), c[i] = vld1q_u64(state.c + 2 * i);
  for (; stripes != 0; --stripes, bytes += 128) {
    BF16CODECS_UNROLL
    for (unsigned i = 0; i < 8; ++i) {
      // a += v, c = rotl(c, 23) + a
      a[i] = vaddq_u64(a[i], vreinterpretq_u64_u8(vld1q_u8(bytes + 16 * i)));
      c[i] = vaddq_u64(vsriq_n_u64(vshlq_n_u64(c[i], 23), c[i], 41), a[i]);
    }
  }
  BF16CODECS_UNROLL
  for (unsigned i = 0; i < 8; ++i)
    vst1q_u64(state.a + 2 * i, a[i]), vst1q_u64(state.c + 2 * i, c[i]);
}

void load_distances16(const uint8_t* base, const uint8_t* items, size_t n, uint16_t* keys) {
  // bits = |item - base|, as binary32 numbers;  (bits is normal ? bits : 0) >> 15 | 2. Infinities
  // and what is not a number have bits that are not below infinity's. The result is below 0xFF00.
  const uint32x4_t infinity = vdupq_n_u32(0x7F800000);
  const auto normal = [&](uint32x4_t bits) { return vandq_u32(bits, vtstq_u32(bits, infinity)); };
  const auto number = [&](uint16x4_t item) {
    return vreinterpretq_f32_u32(normal(vshll_n_u16(item, 16)));
  };
  size_t i = 0;
  for (; i + 4 <= n; i += 4) {
    const uint16x4_t x = vreinterpret_u16_u8(vld1_u8(items + 2 * i));
    const uint16x4_t b = vreinterpret_u16_u8(vld1_u8(base + 2 * i));
    const uint32x4_t bits = vreinterpretq_u32_f32(vabdq_f32(number(x), number(b)));
    const uint32x4_t finite = vandq_u32(normal(bits), vcltq_u32(bits, infinity));
    vst1_u16(keys + i, vorr_u16(vshrn_n_u32(finite, 15), vdup_n_u16(2)));
  }
  if (i < n) kScalarKernels.load_distances16(base + 2 * i, items + 2 * i, n - i, keys + i);
}

void load_keys16(const uint8_t* items, size_t n, uint16_t* keys) {
  size_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const uint16x8_t v = vreinterpretq_u16_u8(vld1q_u8(items + 2 * i));
    // item << 1 | item >> 15
    vst1q_u16(keys + i, vsliq_n_u16(vshrq_n_u16(v, 15), v, 1));
  }
  if (i < n) kScalarKernels.load_keys16(items + 2 * i, n - i, keys + i);
}

void split16(const uint8_t* items, size_t n, uint8_t* high, uint8_t* low) {
  size_t i = 0;
  for (; i + 16 <= n; i += 16) {
    const uint8x16x2_t item = vld2q_u8(items + 2 * i);
    // The loads part low and high bytes. Bytes of item >> 7 and of item << 1 | item >> 15, each
    // made of both by a shift with insertion.
    vst1q_u8(high + i, vsliq_n_u8(vshrq_n_u8(item.val[0], 7), item.val[1], 1));
    vst1q_u8(low + i, vsliq_n_u8(vshrq_n_u8(item.val[1], 7), item.val[0], 1));
  }
  if (i < n) kScalarKernels.split16(items + 2 * i, n - i, high + i, low + i);
}

void merge16(const uint8_t* high, const uint8_t* low, size_t n, uint8_t* items) {
  size_t i = 0;
  for (; i + 16 <= n; i += 16) {
    vst2q_u8(items + 2 * i, merge(vld1q_u8(high + i), vld1q_u8(low + i)));
  }
  if (i < n) kScalarKernels.merge16(high + i, low + i, n - i, items + 2 * i);
}

// Two symbols of the window share the halves of a byte counter, so that one look-up counts both. A
// half overflows at 16, so they are summed after this many vectors.
constexpr size_t kCountedVectors = 15;
constexpr unsigned kCounters = kWindowSymbols / 2;

struct CountTables {
  uint8_t one[kCounters][16];  // 1 for symbol 2 t, 16 for symbol 2 t + 1
};

constexpr CountTables make_count_tables() {
  CountTables tables{};
  for (unsigned t = 0; t < kCounters; ++t) {
    tables.one[t][2 * t] = 1;
    tables.one[t][2 * t + 1] = 16;
  }
  return tables;
}

constexpr CountTables kCountTables = make_count_tables();

// Counts at most kCountedVectors vectors. A look-up with an index above 15 gives 0: symbols outside
// of the window are counted one by one.
void count(const uint8_t* plane, size_t vectors, uint8_t window, uint32_t counts[256]) {
  uint8x16_t counters[kCounters];
  BF16CODECS_UNROLL
  for (unsigned t = 0; t < kCounters; ++t) counters[t] = vdupq_n_u8(0);
  for (; vectors != 0; --vectors, plane += 16) {
    const uint8x16_t symbols = vsubq_u8(vld1q_u8(plane), vdupq_n_u8(window));
    // counters[s / 2] += s % 2 == 0 ? 1 : 16, and nothing for symbols outside
    BF16CODECS_UNROLL
    for (unsigned t = 0; t < kCounters; ++t) {
      counters[t] = vaddq_u8(counters[t], vqtbl1q_u8(vld1q_u8(kCountTables.one[t]), symbols));
    }
    uint64_t others = nibble_mask(vcgeq_u8(symbols, vdupq_n_u8(kWindowSymbols)));
    while (others != 0) {
      const unsigned i = first_bit(others) / 4;
      ++counts[plane[i]];
      others &= ~(uint64_t{15} << (4 * i));
    }
  }
  BF16CODECS_UNROLL
  for (unsigned t = 0; t < kCounters; ++t) {
    // Sums over the 16 bytes of a vector, each at most 15, fit in a byte: 240 at most.
    counts[(window + 2 * t) & 255] += vaddvq_u8(vandq_u8(counters[t], vdupq_n_u8(15)));
    counts[(window + 2 * t + 1) & 255] += vaddvq_u8(vshrq_n_u8(counters[t], 4));
  }
}

void histogram(const uint8_t* plane, size_t n, uint8_t window, uint32_t counts[256]) {
  size_t i = 0;
  while (i + 16 <= n) {
    const size_t left = (n - i) / 16;
    const size_t vectors = left < kCountedVectors ? left : kCountedVectors;
    count(plane + i, vectors, window, counts);
    i += 16 * vectors;
  }
  for (; i < n; ++i) ++counts[plane[i]];
}

// Sums saturate at 32767, which is not below `most`, and cannot fall below -32768, as the row is
// not negative.
void add_columns(const int16_t* columns, unsigned step, int row, int most, size_t n,
                 uint16_t* scales) {
  const int16x8_t from = vdupq_n_s16(static_cast<int16_t>(row));
  const int16x8_t limit = vdupq_n_s16(static_cast<int16_t>(most));
  const int16x8_t shift = vdupq_n_s16(static_cast<int16_t>(step));
  size_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const int16x8_t sum = vqaddq_s16(from, vshlq_s16(vld1q_s16(columns + i), shift));
    const int16x8_t within = vmaxq_s16(vminq_s16(sum, limit), vdupq_n_s16(0));
    vst1q_u16(scales + i, vreinterpretq_u16_s16(within));
  }
  kScalarKernels.add_columns(columns + i, step, row, most, n - i, scales + i);
}

size_t differing_bits(const uint8_t* a, const uint8_t* b, size_t n) {
  size_t count = 0, i = 0;
  for (; i + 16 <= 8 * n; i += 16) {
    count += vaddlvq_u8(vcntq_u8(veorq_u8(vld1q_u8(a + i), vld1q_u8(b + i))));
  }
  return count + kScalarKernels.differing_bits(a + i, b + i, n - i / 8);
}

}  // namespace

const Kernels kNeonKernels = {
    .name = "neon",
    .checksum = checksum,
    .load_keys16 = load_keys16,
    .load_distances16 = load_distances16,
    .split16 = split16,
    .merge16 = merge16,
    .histogram = histogram,
    .magnitudes = &kNeonMagnitudeKernels,
    .pairs_decode = neon_pairs_decode,
    .pairs_decode16 = neon_pairs_decode16,
    .pairs_encode = neon_pairs_encode,
    .huffman_pack = nullptr,
    .add_columns = add_columns,
    .differing_bits = differing_bits,
    .differing_words = scalar_differing_words,
    .quantized = &kNeonQuantizedKernels,
    .tiles = &kNeonTileKernels,
    .delta = &kNeonDeltaKernels,
    .sparse = &kNeonSparseKernels,
};

}  // namespace bf16codecs
