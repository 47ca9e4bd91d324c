// The tiles mode's kernels for AVX2 without the coder (docs/format_tiles.md, "Symbols and raw
// bits", "Tiles" and "Records"). A record's 64 items are handled in four quarters: 16 symbols in
// 128 bits, and 16 words of keys in a register. The loops over records are in tiles_records.h. Each
// group of vector instructions is preceded by the scalar formula that it computes.

#include "kernels/x86/avx2_tiles.h"
#include "kernels/tiles_records.h"
#include "kernels/tiles_tables.h"

namespace bf16codecs {
namespace {

constexpr unsigned kQuarter = kRecordItems / 4;  // the items of a register

// The highest bits of 64 bytes.
BF16CODECS_INLINE uint64_t byte_mask(__m256i low, __m256i high) {
  return static_cast<uint32_t>(_mm256_movemask_epi8(low)) |
         static_cast<uint64_t>(static_cast<uint32_t>(_mm256_movemask_epi8(high))) << 32;
}

// --- the order -----------------------------------------------------------------------------------

// Bits 2 and 3 of 64 scales: each is shifted to bit 7 of a byte, where a mask takes it. Shifts of
// words move bits from a byte into the next one, but not into its bit 7.
BF16CODECS_INLINE ClassBits class_bits(const uint16_t* scales) {
  const __m256i low_byte = _mm256_set1_epi16(255);
  __m256i s[2];  // the low bytes of the scales
  BF16CODECS_UNROLL
  for (unsigned i = 0; i < 2; ++i) {
    s[i] = pack(_mm256_and_si256(load(scales + 32 * i), low_byte),
                _mm256_and_si256(load(scales + 32 * i + 16), low_byte));
  }
  return {byte_mask(_mm256_slli_epi16(s[0], 5), _mm256_slli_epi16(s[1], 5)),
          byte_mask(_mm256_slli_epi16(s[0], 4), _mm256_slli_epi16(s[1], 4))};
}

void order(const uint16_t* scales, size_t n, TileOrder& order) {
  order_records(scales, n, order, class_bits);
}

BF16CODECS_INLINE __m128i load8(const uint8_t* p) {
  return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
}

// The symbols of a record, in the order of its items.
struct Symbols {
  __m128i quarter[4];

  BF16CODECS_INLINE uint64_t zeros() const {
    uint64_t mask = 0;
    BF16CODECS_UNROLL
    for (unsigned k = 0; k < 4; ++k) {
      const __m128i zero = _mm_cmpeq_epi8(quarter[k], _mm_setzero_si128());
      mask |= static_cast<uint64_t>(_mm_movemask_epi8(zero)) << kQuarter * k;
    }
    return mask;
  }
};

// Takes the symbols of 8 items from the lists of the classes. Each item is in one class: the
// shuffle of the others gives 0.
BF16CODECS_INLINE __m128i take8(const uint64_t masks[kTileClasses], unsigned first,
                                const uint8_t* next[kTileClasses]) {
  __m128i symbols = _mm_setzero_si128();
  BF16CODECS_UNROLL
  for (unsigned c = 0; c < kTileClasses; ++c) {
    const unsigned mask = masks[c] >> first & 255;
    const __m128i indices = load8(kByteTables.expand[mask]);
    symbols = _mm_or_si128(symbols, _mm_shuffle_epi8(load8(next[c]), indices));
    next[c] += popcount(mask);
  }
  return symbols;
}

// --- keys ----------------------------------------------------------------------------------------

// 8 E 2^R of 16 scales, with E = S div 16: S without its low four bits is 16 E. Modulo 2^16.
template <unsigned kRawBits>
BF16CODECS_INLINE __m256i scale_part(__m256i scales) {
  const __m256i whole = _mm256_and_si256(scales, _mm256_set1_epi16(-16));
  if constexpr (kRawBits == 0) return _mm256_srli_epi16(whole, 1);
  return _mm256_slli_epi16(whole, static_cast<int>(kRawBits - 1));
}

// The raw bits of quarter k of a record.
template <unsigned kRawBits>
BF16CODECS_INLINE __m256i load_raw(const uint8_t* record, unsigned k) {
  constexpr unsigned kBits = kRawBits % 4, kParts = kRawBits / 4;
  __m256i raw = _mm256_setzero_si256();
  for (unsigned part = 0; part < kParts; ++part) {
    // Item i has the low half of byte i if i < 32, otherwise the high half of byte i - 32.
    const __m256i bytes = _mm256_cvtepu8_epi16(load16(record + 32 * part + kQuarter * (k % 2)));
    const __m256i half =
        k < 2 ? _mm256_and_si256(bytes, _mm256_set1_epi16(15)) : _mm256_srli_epi16(bytes, 4);
    raw = _mm256_or_si256(raw, _mm256_slli_epi16(half, static_cast<int>(kBits + 4 * part)));
  }
  const __m256i bit_of = _mm256_setr_epi16(1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096,
                                           8192, 16384, INT16_MIN);
  for (unsigned bit = 0; bit < kBits; ++bit) {
    // Bit i of this word belongs to item i of the quarter.
    const uint8_t* const word = record + 32 * kParts + 8 * bit + 2 * k;
    const __m256i words = _mm256_set1_epi16(static_cast<short>(word[0] | word[1] << 8));
    const __m256i is_set = _mm256_cmpeq_epi16(_mm256_and_si256(words, bit_of), bit_of);
    raw = _mm256_or_si256(
        raw, _mm256_and_si256(is_set, _mm256_set1_epi16(static_cast<short>(1 << bit))));
  }
  return raw;
}

// Stores the raw bits of a record's keys.
template <unsigned kRawBits>
BF16CODECS_INLINE void store_raw(uint8_t* record, const __m256i keys[4]) {
  constexpr unsigned kBits = kRawBits % 4, kParts = kRawBits / 4;
  const __m256i nibble = _mm256_set1_epi16(15);
  for (unsigned part = 0; part < kParts; ++part) {
    __m256i both[2];
    BF16CODECS_UNROLL
    for (unsigned k = 0; k < 2; ++k) {
      // (key >> (B + 4 part) & 15) | (key of the item 32 on >> (B + 4 part) & 15) << 4
      const auto shift = static_cast<int>(kBits + 4 * part);
      const __m256i low = _mm256_and_si256(_mm256_srli_epi16(keys[k], shift), nibble);
      const __m256i high = _mm256_and_si256(_mm256_srli_epi16(keys[k + 2], shift), nibble);
      both[k] = _mm256_or_si256(low, _mm256_slli_epi16(high, 4));
    }
    store(record + 32 * part, pack(both[0], both[1]));
  }
  for (unsigned bit = 0; bit < kBits; ++bit) {
    // The bit is shifted to the sign, which packing to bytes with saturation keeps.
    __m256i signs[2];
    BF16CODECS_UNROLL
    for (unsigned k = 0; k < 2; ++k) {
      const __m256i v = _mm256_slli_epi16(keys[2 * k], static_cast<int>(15 - bit));
      const __m256i w = _mm256_slli_epi16(keys[2 * k + 1], static_cast<int>(15 - bit));
      signs[k] = _mm256_permute4x64_epi64(_mm256_packs_epi16(v, w), 0xD8);
    }
    const auto mask = static_cast<int64_t>(byte_mask(signs[0], signs[1]));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(record + 32 * kParts + 8 * bit),
                     _mm_cvtsi64_si128(mask));
  }
}

// --- decoding ------------------------------------------------------------------------------------

// Rotates keys right by one bit to items, or leaves them as keys: a shift by 16 gives 0.
struct Rotation {
  __m128i right, left;

  BF16CODECS_INLINE explicit Rotation(bool to_items)
      : right(_mm_cvtsi32_si128(to_items ? 1 : 0)), left(_mm_cvtsi32_si128(to_items ? 15 : 16)) {}

  BF16CODECS_INLINE __m256i operator()(__m256i keys) const {
    return _mm256_or_si256(_mm256_srl_epi16(keys, right), _mm256_sll_epi16(keys, left));
  }
};

// Puts records together: see restore_records().
template <unsigned kRawBits>
class Joiner {
 public:
  explicit Joiner(const TileShape& shape)
      : rotation_(shape.to_items),
        key_mask_(_mm256_set1_epi16(static_cast<short>(shape.key_mask))),
        origin_(_mm256_set1_epi16(static_cast<short>(kSymbolOrigin << kRawBits))) {}

  // With one class, symbols lie in the order of the items.
  BF16CODECS_INLINE Symbols load(const uint8_t* symbols) const {
    return {{load16(symbols), load16(symbols + 16), load16(symbols + 32), load16(symbols + 48)}};
  }

  BF16CODECS_INLINE Symbols take(const uint64_t masks[kTileClasses],
                                 const uint8_t* next[kTileClasses]) const {
    Symbols symbols;
    BF16CODECS_UNROLL
    for (unsigned k = 0; k < 4; ++k) {
      const __m128i first = take8(masks, kQuarter * k, next);
      symbols.quarter[k] = _mm_unpacklo_epi64(first, take8(masks, kQuarter * k + 8, next));
    }
    return symbols;
  }

  BF16CODECS_INLINE uint64_t join(const Symbols& v, const uint8_t* record, const uint16_t* scales,
                                  uint8_t* out) const {
    BF16CODECS_UNROLL
    for (unsigned k = 0; k < 4; ++k) {
      // key = (v + 8 E - 208) 2^R + raw, modulo 2^16: escapes and damaged data may leave the range
      const __m256i low = _mm256_or_si256(
          _mm256_slli_epi16(_mm256_cvtepu8_epi16(v.quarter[k]), static_cast<int>(kRawBits)),
          load_raw<kRawBits>(record, k));
      const __m256i scale = scale_part<kRawBits>(bf16codecs::load(scales + kQuarter * k));
      const __m256i keys = _mm256_add_epi16(low, _mm256_sub_epi16(scale, origin_));
      store(out + 2 * kQuarter * k, rotation_(_mm256_and_si256(keys, key_mask_)));
    }
    return v.zeros();
  }

 private:
  Rotation rotation_;
  __m256i key_mask_, origin_;
};

void restore(const TileShape& shape, const TileItems& items, TileEscapes& escapes) {
  with_raw_bits(
      shape.raw_bits, [&](auto bits) { restore_records<Joiner<bits>>(shape, items, escapes); },
      [&] { kScalarTileKernels.restore(shape, items, escapes); });
}

// --- encoding ------------------------------------------------------------------------------------

// The symbols of 16 keys, 0 for escapes.
template <unsigned kRawBits>
BF16CODECS_INLINE __m256i symbols_of(__m256i keys, __m256i scales, __m256i first, __m256i most) {
  // v = (key >> R) - 8 E + 208;  v - lo <= hi - 1 - lo ? v : 0. A v below lo wraps around and is
  // larger as an unsigned word. AVX2 has no unsigned comparison: min(a, b) == a is a <= b.
  const __m256i scale = scale_part<0>(scales);
  const __m256i v =
      _mm256_add_epi16(_mm256_sub_epi16(_mm256_srli_epi16(keys, static_cast<int>(kRawBits)), scale),
                       _mm256_set1_epi16(kSymbolOrigin));
  const __m256i offset = _mm256_sub_epi16(v, first);
  return _mm256_and_si256(v, _mm256_cmpeq_epi16(_mm256_min_epu16(offset, most), offset));
}

// Takes records apart: see arrange_records().
template <unsigned kRawBits>
class Splitter {
 public:
  explicit Splitter(const TileShape& shape)
      : first_(_mm256_set1_epi16(static_cast<short>(shape.first))),
        most_(_mm256_set1_epi16(static_cast<short>(shape.end - 1 - shape.first))) {}

  BF16CODECS_INLINE uint64_t split(const uint16_t* keys, const uint16_t* scales, uint8_t* symbols,
                                   uint8_t* record) const {
    __m256i key[4], v[4];
    BF16CODECS_UNROLL
    for (unsigned k = 0; k < 4; ++k) {
      key[k] = load(keys + kQuarter * k);
      v[k] = symbols_of<kRawBits>(key[k], load(scales + kQuarter * k), first_, most_);
    }
    const __m256i low = pack(v[0], v[1]), high = pack(v[2], v[3]);
    store(symbols, low), store(symbols + 32, high);
    store_raw<kRawBits>(record, key);
    const __m256i zero = _mm256_setzero_si256();
    return byte_mask(_mm256_cmpeq_epi8(low, zero), _mm256_cmpeq_epi8(high, zero));
  }

  // Eight symbols at a time: each store writes 8 bytes, and the next one overwrites those that are
  // not moved symbols.
  BF16CODECS_INLINE uint8_t* move(const uint8_t* symbols, uint64_t mask, uint8_t* next) const {
    BF16CODECS_UNROLL
    for (unsigned k = 0; k < kRecordItems; k += 8) {
      const unsigned part = mask >> k & 255;
      const __m128i indices = load8(kByteTables.compress[part]);
      _mm_storel_epi64(reinterpret_cast<__m128i*>(next),
                       _mm_shuffle_epi8(load8(symbols + k), indices));
      next += popcount(part);
    }
    return next;
  }

 private:
  __m256i first_, most_;
};

uint16_t* arrange(const TileShape& shape, const TileOrder& order, const uint16_t* keys,
                  const uint16_t* scales, size_t n, uint8_t* symbols, uint8_t* records,
                  uint16_t* escapes) {
  const auto arrange_with = [&](auto kernel) {
    return kernel(shape, order, keys, scales, n, symbols, records, escapes);
  };
  return with_raw_bits(
      shape.raw_bits, [&](auto bits) { return arrange_with(arrange_records<Splitter<bits>>); },
      [&] { return arrange_with(kScalarTileKernels.arrange); });
}

}  // namespace

const TileKernels kAvx2TileKernels = {
    .order = order,
    .decode = avx2_tiles_decode,
    .prepare = nullptr,
    .restore = restore,
    .decode_restore = nullptr,
    .arrange = arrange,
    .encode = avx2_tiles_encode,
    .prepare_code = spell_out_code_slots,
};

}  // namespace bf16codecs
