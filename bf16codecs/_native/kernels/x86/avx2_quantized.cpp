// The loops of grids, compiled for AVX2; and items of 16 bits by runs of one scale: the products of
// a run are looked up by shuffles of bytes, which takes a fourth of the time of multiplying.

#include <immintrin.h>

#include "kernels/quantized_search.h"

namespace bf16codecs {
namespace {

BF16CODECS_INLINE __m256i load(const void* p) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(p));
}
BF16CODECS_INLINE void store(void* p, __m256i v) {
  _mm256_storeu_si256(static_cast<__m256i*>(p), v);
}

// The low or the high bytes of 32 words.
BF16CODECS_INLINE __m256i bytes_of(const uint8_t words[64], int shift) {
  const __m256i mask = _mm256_set1_epi16(0xFF);
  const __m256i first = _mm256_and_si256(_mm256_srli_epi16(load(words), shift), mask);
  const __m256i second = _mm256_and_si256(_mm256_srli_epi16(load(words + 32), shift), mask);
  return _mm256_permute4x64_epi64(_mm256_packus_epi16(first, second), 0xD8);
}

// A table of 32 bytes, each half in both halves of a register.
struct ByteTable {
  __m256i first, second;

  explicit BF16CODECS_INLINE ByteTable(__m256i bytes)
      : first(_mm256_permute2x128_si256(bytes, bytes, 0x00)),
        second(_mm256_permute2x128_si256(bytes, bytes, 0x11)) {}

  // Bit 4 of an index selects the half; the upper bits are zero.
  BF16CODECS_INLINE __m256i at(__m256i indices) const {
    const __m256i is_second = _mm256_slli_epi16(indices, 3);
    return _mm256_blendv_epi8(_mm256_shuffle_epi8(first, indices),
                              _mm256_shuffle_epi8(second, indices), is_second);
  }
};

// 32 words of low and high bytes, each half of a register by itself.
struct Words {
  __m256i even, odd;

  BF16CODECS_INLINE Words(__m256i low, __m256i high)
      : even(_mm256_unpacklo_epi8(low, high)), odd(_mm256_unpackhi_epi8(low, high)) {}

  BF16CODECS_INLINE void store_to(uint8_t* items) const {
    store(items, _mm256_permute2x128_si256(even, odd, 0x20));
    store(items + 32, _mm256_permute2x128_si256(even, odd, 0x31));
  }
};

// The words of 32 products of levels and a scale.
template <Precision kPrecision, Container kContainer>
BF16CODECS_INLINE void multiply_levels(const float levels[32], float scale, uint8_t words[64]) {
  for (unsigned i = 0; i < 32; ++i) {
    store_item<kContainer>(rounded<kPrecision>(levels[i] * scale), words + 2 * i);
  }
}

// Of codes without low bits.
template <Precision kPrecision, Container kContainer>
class Products {
 public:
  explicit Products(const Levels& levels) {
    for (unsigned s = 0; s < kMostLevels; ++s) {
      levels_[s] =
          levels.family == Family::integers ? Integers(levels).level(s, 0) : levels.table[s];
    }
  }

  struct OfRun {
    ByteTable low, high;

    BF16CODECS_INLINE void items(const uint8_t* symbols, const uint8_t*, uint8_t* out) const {
      const __m256i indices = _mm256_and_si256(load(symbols), _mm256_set1_epi8(31));
      Words(low.at(indices), high.at(indices)).store_to(out);
    }
  };
  BF16CODECS_INLINE OfRun start(float scale) const {
    alignas(32) uint8_t words[64];
    multiply_levels<kPrecision, kContainer>(levels_, scale, words);
    return {ByteTable(bytes_of(words, 0)), ByteTable(bytes_of(words, 8))};
  }

 private:
  alignas(32) float levels_[kMostLevels];
};

// Of floats with three bits of a mantissa, as bfloat16: the products of the mantissas are rounded
// in the first octave. In others, the exponent is larger, and nothing else.
class Float8Products {
 public:
  Float8Products(const Levels& levels, unsigned from) : from_(from) {
    const Floats floats(levels);
    for (unsigned p = 0; p < 32; ++p) levels_[p] = floats.level(p / 8 % 2, p % 8);
  }

  struct OfRun {
    __m256i low, high;
    __m128i from;

    BF16CODECS_INLINE void items(const uint8_t* symbols, const uint8_t* packed,
                                 uint8_t* out) const {
      const __m256i zero = _mm256_setzero_si256();
      const __m256i exponents = _mm256_and_si256(load(symbols), _mm256_set1_epi8(31));
      const __m256i bits = _mm256_srl_epi16(load(packed), from);
      const __m256i is_subnormal = _mm256_cmpeq_epi8(exponents, zero);
      const __m256i eight = _mm256_andnot_si256(is_subnormal, _mm256_set1_epi8(8));
      const __m256i indices = _mm256_or_si256(_mm256_and_si256(bits, _mm256_set1_epi8(7)), eight);
      const __m256i octaves = _mm256_subs_epu8(exponents, _mm256_set1_epi8(1));
      const __m256i signs = _mm256_and_si256(_mm256_slli_epi16(bits, 4), _mm256_set1_epi8(-128));
      Words words(_mm256_shuffle_epi8(low, indices), _mm256_shuffle_epi8(high, indices));
      const Words more(octaves, zero), sign(zero, signs);
      words.even = _mm256_xor_si256(_mm256_add_epi16(words.even, _mm256_slli_epi16(more.even, 7)),
                                    sign.even);
      words.odd =
          _mm256_xor_si256(_mm256_add_epi16(words.odd, _mm256_slli_epi16(more.odd, 7)), sign.odd);
      words.store_to(out);
    }
  };
  BF16CODECS_INLINE OfRun start(float scale) const {
    alignas(32) uint8_t words[64];
    multiply_levels<Precision::bfloat16, Container::bfloat16>(levels_, scale, words);
    return {bytes_of(words, 0), bytes_of(words, 8), _mm_cvtsi32_si128(static_cast<int>(from_))};
  }

 private:
  unsigned from_;
  alignas(32) float levels_[32];
};

// The last items of a run, by way of memory that has room for 32.
template <typename OfRun>
BF16CODECS_INLINE void multiply_last(const OfRun& of, const uint8_t* symbols, const uint8_t* packed,
                                     size_t n, uint8_t* items) {
  uint8_t last_symbols[32] = {}, last_packed[32] = {}, last_items[64];
  for (size_t i = 0; i < n; ++i) last_symbols[i] = symbols[i], last_packed[i] = packed[i];
  of.items(last_symbols, last_packed, last_items);
  for (size_t i = 0; i < 2 * n; ++i) items[i] = last_items[i];
}

template <typename Of>
void multiply_by_runs(const Of& of, const uint8_t* symbols, const uint8_t* packed,
                      const ScaleRun* runs, size_t n_runs, uint8_t* items) {
  for (size_t r = 0; r < n_runs; ++r) {
    const auto of_run = of.start(runs[r].scale);
    const size_t length = runs[r].length;
    size_t i = 0;
    for (; i + 32 <= length; i += 32) of_run.items(symbols + i, packed + i, items + 2 * i);
    if (i < length) multiply_last(of_run, symbols + i, packed + i, length - i, items + 2 * i);
    symbols += length, packed += length, items += 2 * length;
  }
}

bool takes_runs(const Levels& levels, Precision precision, Container container) {
  const bool is_float8 = levels.family == Family::floats && levels.low_bits == 4;
  return container != Container::float32 &&
         (levels.low_bits == 0 || (is_float8 && precision == Precision::bfloat16));
}

void multiply_runs(const Levels& levels, Precision precision, Container container,
                   const uint8_t* symbols, const LowBits low[], const ScaleRun* runs, size_t n_runs,
                   uint8_t* items) {
  if (levels.low_bits != 0) {
    return multiply_by_runs(Float8Products(levels, low[0].from), symbols, low[0].packed, runs,
                            n_runs, items);
  }
  const auto multiply_as = [&](const auto& products) {
    multiply_by_runs(products, symbols, symbols, runs, n_runs, items);
  };
  if (container == Container::float16) {
    multiply_as(Products<Precision::binary16, Container::float16>(levels));
  } else if (precision == Precision::bfloat16) {
    multiply_as(Products<Precision::bfloat16, Container::bfloat16>(levels));
  } else {
    multiply_as(Products<Precision::binary16_bfloat16, Container::bfloat16>(levels));
  }
}

}  // namespace

const QuantizedKernels kAvx2QuantizedKernels =
    BF16CODECS_QUANTIZED_KERNELS(takes_runs, multiply_runs);

}  // namespace bf16codecs
