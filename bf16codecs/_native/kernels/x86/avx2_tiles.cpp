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
  // All bits of the classes whose number has bit 0, and bit 1, clear.
  const __m256i even = _mm256_setr_epi64x(-1, 0, -1, 0), below2 = _mm256_setr_epi64x(-1, -1, 0, 0);
  __m256i totals = _mm256_setzero_si256();
  for (size_t record = 0; record < n / kRecordItems; ++record, scales += kRecordItems) {
    const auto [low, high] = class_bits(scales);
    const __m256i bit0 = _mm256_xor_si256(_mm256_set1_epi64x(static_cast<int64_t>(low)), even);
    const __m256i bit1 = _mm256_xor_si256(_mm256_set1_epi64x(static_cast<int64_t>(high)), below2);
    const __m256i masks = _mm256_and_si256(bit0, bit1);
    store(order.mask[record], masks);
    // Byte j is the sum of the counts up to j, in three rounds.
    __m256i sums = count_in_bytes(masks);
    sums = _mm256_add_epi8(sums, _mm256_slli_epi64(sums, 8));
    sums = _mm256_add_epi8(sums, _mm256_slli_epi64(sums, 16));
    sums = _mm256_add_epi8(sums, _mm256_slli_epi64(sums, 32));
    store(order.rank[record], _mm256_slli_epi64(sums, 8));
    totals = _mm256_add_epi64(totals, _mm256_srli_epi64(sums, 56));
  }
  alignas(32) uint64_t counts[kTileClasses];
  store(counts, totals);
  order.begin[0] = 0;
  for (unsigned c = 0; c < kTileClasses; ++c) {
    order.begin[c + 1] = order.begin[c] + static_cast<uint32_t>(counts[c]);
  }
}

// Eight bits of a mask of 64.
BF16CODECS_INLINE size_t eighth(const uint64_t& mask, unsigned j) {
  return reinterpret_cast<const uint8_t*>(&mask)[j];
}

BF16CODECS_INLINE __m128i load8(const uint8_t* p) {
  return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
}

// A shuffle from one of the tables, which are followed by at least eight bytes. The upper eight
// bytes are noise.
BF16CODECS_INLINE __m128i shuffle8(const uint8_t* table, size_t mask) {
  return load16(table + 8 * mask);
}

// The symbols of a record. Bytes of 32 items are in an order in which unpacking leaves words in the
// order of the items: 0-7, 16-23, 8-15, 24-31.
struct Symbols {
  __m256i half[2];

  // The items whose symbols are 0.
  BF16CODECS_INLINE uint64_t zeros() const {
    const __m256i zero = _mm256_setzero_si256();
    const __m256i any = _mm256_cmpeq_epi8(_mm256_min_epu8(half[0], half[1]), zero);
    if (_mm256_testz_si256(any, any)) [[likely]]
      return 0;
    return byte_mask(in_order(_mm256_cmpeq_epi8(half[0], zero)),
                     in_order(_mm256_cmpeq_epi8(half[1], zero)));
  }
};

// Takes the symbols of eight items from the lists of the classes. Each item is in one class: the
// shuffles of the others give 0. The upper eight bytes are noise.
BF16CODECS_INLINE __m128i take8(const TileOrder& order, size_t record, unsigned j,
                                const uint8_t* const next[kTileClasses]) {
  __m128i symbols = _mm_setzero_si128();
  BF16CODECS_UNROLL
  for (unsigned c = 0; c < kTileClasses; ++c) {
    const __m128i list = load8(next[c] + order.rank[record][c][j]);
    const size_t mask = eighth(order.mask[record][c], j);
    symbols = _mm_or_si128(symbols, _mm_shuffle_epi8(list, shuffle8(kByteTables.expand[0], mask)));
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

// All bits of the items of quarter k for which a bit of a u64 is set.
BF16CODECS_INLINE __m256i load_bits(const uint8_t* bits, unsigned k) {
  const __m256i bit_of = _mm256_setr_epi16(1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096,
                                           8192, 16384, INT16_MIN);
  const __m256i all = _mm256_broadcastq_epi64(load8(bits));
  const __m256i word_k = _mm256_set1_epi16(static_cast<short>((2 * k + 1) << 8 | 2 * k));
  const __m256i words = _mm256_shuffle_epi8(all, word_k);
  return _mm256_cmpeq_epi16(_mm256_and_si256(words, bit_of), bit_of);
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
  for (unsigned bit = 0; bit < kBits; ++bit) {
    const __m256i is_set = load_bits(record + 32 * kParts + 8 * bit, k);
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

// Puts records together: see restore_records().
template <unsigned kRawBits, bool kToItems>
class Joiner {
 public:
  explicit Joiner(const TileShape& shape) : key_mask_(words_of(shape.key_mask)) {}

  // With one class, symbols lie in the order of the items.
  BF16CODECS_INLINE Symbols load(const uint8_t* symbols) const {
    return {{in_order(bf16codecs::load(symbols)), in_order(bf16codecs::load(symbols + 32))}};
  }

  BF16CODECS_INLINE Symbols take(const TileOrder& order, size_t record,
                                 const uint8_t* next[kTileClasses]) const {
    Symbols symbols;
    BF16CODECS_UNROLL
    for (unsigned h = 0; h < 2; ++h) {
      const auto pair = [&](unsigned j) {
        return _mm_unpacklo_epi64(take8(order, record, 4 * h + j, next),
                                  take8(order, record, 4 * h + j + 2, next));
      };
      symbols.half[h] = _mm256_set_m128i(pair(1), pair(0));
    }
    BF16CODECS_UNROLL
    for (unsigned c = 0; c < kTileClasses; ++c) next[c] += count_bits(order.mask[record][c]);
    return symbols;
  }

  BF16CODECS_INLINE uint64_t join(const Symbols& v, const uint8_t* record, const uint16_t* scales,
                                  uint8_t* out) const {
    const Symbols below = below_symbols(record);
    BF16CODECS_UNROLL
    for (unsigned k = 0; k < 4; ++k) {
      const __m256i low = below.half[k / 2], high = v.half[k / 2];
      const __m256i words =
          k % 2 == 0 ? _mm256_unpacklo_epi8(low, high) : _mm256_unpackhi_epi8(low, high);
      const __m256i scale = bf16codecs::load(scales + kQuarter * k);
      store(out + 2 * kQuarter * k, item(words, record, k, scale));
    }
    return v.zeros();
  }

 private:
  // Where raw bits are four and a sign, as those of bfloat16 and float32, bytes of the four stand
  // below the symbols when both are unpacked to words.
  static constexpr bool kIsSigned = kRawBits == 5;
  // Where the sign is bit 15 of an item, all else is one bit lower than in a key.
  static constexpr bool kIsPlaced = kIsSigned && kToItems;
  static constexpr unsigned kSymbol = kIsPlaced ? kRawBits - 1 : kRawBits;

  // The bytes that are unpacked with symbols: four raw bits each, above four zeros, or zeros.
  static BF16CODECS_INLINE Symbols below_symbols(const uint8_t* record) {
    if constexpr (!kIsSigned) return {{_mm256_setzero_si256(), _mm256_setzero_si256()}};
    const __m256i four = _mm256_set1_epi8(static_cast<char>(0xF0));
    const __m256i both = in_order(bf16codecs::load(record));
    return {{_mm256_and_si256(_mm256_slli_epi16(both, 4), four), _mm256_and_si256(both, four)}};
  }

  // key = (v + 8 E - 208) 2^R + raw, modulo 2^16: escapes and damaged data may leave the range.
  // Items are keys rotated right by one bit. `symbols` are the words v << 8 | bytes below.
  BF16CODECS_INLINE __m256i item(__m256i symbols, const uint8_t* record, unsigned k,
                                 __m256i scale) const {
    const __m256i v = _mm256_srli_epi16(symbols, static_cast<int>(8 - kSymbol));
    const __m256i from =
        _mm256_sub_epi16(scale_part<kSymbol>(scale), words_of(unsigned{kSymbolOrigin} << kSymbol));
    const __m256i sum = _mm256_add_epi16(v, from);
    if constexpr (kIsPlaced) {
      const __m256i sign = _mm256_slli_epi16(load_bits(record + 32, k), 15);
      return _mm256_or_si256(_mm256_and_si256(sum, words_of(0x7FFF)), sign);
    }
    const __m256i raw = kIsSigned ? _mm256_srli_epi16(load_bits(record + 32, k), 15)
                                  : load_raw<kRawBits>(record, k);
    const __m256i key = _mm256_and_si256(_mm256_or_si256(sum, raw), key_mask_);
    if constexpr (!kToItems) return key;
    return _mm256_or_si256(_mm256_srli_epi16(key, 1), _mm256_slli_epi16(key, 15));
  }

  __m256i key_mask_;
};

template <unsigned kRawBits>
void restore_with(const TileShape& shape, const TileItems& items, TileEscapes& escapes) {
  shape.to_items ? restore_records<Joiner<kRawBits, true>>(shape, items, escapes)
                 : restore_records<Joiner<kRawBits, false>>(shape, items, escapes);
}

void restore(const TileShape& shape, const TileItems& items, TileEscapes& escapes) {
  with_raw_bits(
      shape.raw_bits, [&](auto bits) { restore_with<bits>(shape, items, escapes); },
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
  BF16CODECS_INLINE uint8_t* move(const uint8_t* symbols, const TileOrder& order, size_t record,
                                  unsigned c, uint8_t* next) const {
    BF16CODECS_UNROLL
    for (unsigned j = 0; j < 8; ++j) {
      const size_t mask = eighth(order.mask[record][c], j);
      const __m128i moved =
          _mm_shuffle_epi8(load8(symbols + 8 * j), shuffle8(kByteTables.compress[0], mask));
      _mm_storel_epi64(reinterpret_cast<__m128i*>(next + order.rank[record][c][j]), moved);
    }
    return next + count_bits(order.mask[record][c]);
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
