#pragma once

// TileKernels::restore and arrange for AVX-512: putting symbols and raw bits together, and taking
// them apart (docs/format_tiles.md, "Symbols and raw bits", "Tiles" and "Records"). A record's 64
// symbols are the bytes of one register; its keys are words of two, the first 32 items and the
// others.
//
// Each file that includes this has a copy of its own, built for its instruction set, and defines
// how bytes are ordered by class:
//
//   struct Classes {
//     // Joins 64 symbols: those in mask[c] are the next ones of class c. May read 64 bytes
//     // of each class.
//     static __m512i join(const uint64_t mask[4], const uint8_t* next[4]);
//     // Appends those of 64 symbols that are in the mask; may write 64 bytes.
//     static void append(uint64_t mask, const uint8_t* symbols, uint8_t*& next);
//   };

#include <cstring>

#include "kernels/tiles_escapes.h"
#include "kernels/x86/avx512.h"

namespace bf16codecs {
namespace {

// Words of 64 items: the first 32 and the others.
struct Halves {
  __m512i first, second;
};

BF16CODECS_INLINE __m512i words_of(unsigned v) {
  return _mm512_set1_epi16(static_cast<int16_t>(v));
}

// Shifts words by a constant, to the right if it is negative.
template <int kLeft>
BF16CODECS_INLINE __m512i shift(__m512i v) {
  if constexpr (kLeft >= 0) {
    return _mm512_slli_epi16(v, kLeft);
  } else {
    return _mm512_srli_epi16(v, -kLeft);
  }
}

// Where a kernel puts the raw bits: kBits = R mod 4 single ones and kParts = R div 4 times four.
//
// An item is its key rotated right by one bit. Where a key's bit 0 is a single raw bit, as the sign
// of a bfloat16 is (R = 5: one single bit and one part of four), it is put into bit 15 of the item
// at once, and all else one bit lower: kIsPlaced. Otherwise the finished key is rotated:
// kIsRotated.
template <unsigned kRawBits, bool kToItems>
struct RawLayout {
  static constexpr int kBits = kRawBits % 4, kParts = kRawBits / 4;
  static constexpr bool kIsPlaced = kToItems && kBits != 0, kIsRotated = kToItems && kBits == 0;
  static constexpr int kLow = kIsPlaced ? 1 : 0;  // raw bits that are placed apart
  static constexpr int kSymbol = static_cast<int>(kRawBits) - kLow;
};

// x |= part << kTo, of 32 bytes that have four bits of item i in the low half and of item i + 32 in
// the high half of byte i. 0xF8 is a | b & c.
template <int kTo>
BF16CODECS_INLINE void add_part(Halves& x, const uint8_t* part) {
  const __m512i mask = words_of(15u << kTo), v = _mm512_cvtepu8_epi16(load32(part));
  x.first = _mm512_ternarylogic_epi32(x.first, shift<kTo>(v), mask, 0xF8);
  x.second = _mm512_ternarylogic_epi32(x.second, shift<kTo - 4>(v), mask, 0xF8);
}

// The bits of a u64, bit i that of item i, each at bit `to` of a word.
BF16CODECS_INLINE Halves load_bits(const uint8_t* part, unsigned to) {
  uint64_t bits;
  std::memcpy(&bits, part, sizeof bits);
  const __m512i bit = words_of(1u << to);
  return {_mm512_maskz_mov_epi16(static_cast<__mmask32>(bits), bit),
          _mm512_maskz_mov_epi16(static_cast<__mmask32>(bits >> 32), bit)};
}

// (8 E - kSymbolOrigin) << kSymbol modulo 2^16: S without its low four bits is 16 E.
template <int kSymbol>
BF16CODECS_INLINE __m512i scaled(const uint16_t* scales) {
  const __m512i octaves = _mm512_and_si512(load(scales), words_of(0xFFF0));
  return _mm512_add_epi16(shift<kSymbol - 1>(octaves),
                          words_of(0u - (unsigned{kSymbolOrigin} << kSymbol)));
}

// key = ((symbol + 8 E - kSymbolOrigin) << R | raw) & key_mask, or the item of that key. Sums are
// modulo 2^16; the mask leaves the bits of a key, or 15 bits of an item whose bit 15 is placed.
template <typename L>
BF16CODECS_INLINE Halves restore_record(__m512i symbols, const uint16_t* scales,
                                        const uint8_t* record, __m512i key_mask) {
  Halves x = {shift<L::kSymbol>(_mm512_cvtepu8_epi16(_mm512_castsi512_si256(symbols))),
              shift<L::kSymbol>(_mm512_cvtepu8_epi16(_mm512_extracti64x4_epi64(symbols, 1)))};
  if constexpr (L::kParts > 0) add_part<L::kBits - L::kLow>(x, record);
  if constexpr (L::kParts > 1) add_part<L::kBits - L::kLow + 4>(x, record + 32);
  record += 32 * L::kParts;
  BF16CODECS_UNROLL
  for (int k = L::kLow; k < L::kBits; ++k) {
    const Halves bits = load_bits(record + 8 * k, static_cast<unsigned>(k - L::kLow));
    x.first = _mm512_or_si512(x.first, bits.first);
    x.second = _mm512_or_si512(x.second, bits.second);
  }
  x.first = _mm512_add_epi16(x.first, scaled<L::kSymbol>(scales));
  x.second = _mm512_add_epi16(x.second, scaled<L::kSymbol>(scales + 32));
  if constexpr (L::kIsPlaced) {
    const Halves last = load_bits(record, 15);
    x.first = _mm512_ternarylogic_epi32(x.first, words_of(0x7FFF), last.first, 0xEA);
    x.second = _mm512_ternarylogic_epi32(x.second, words_of(0x7FFF), last.second, 0xEA);
  } else if constexpr (L::kIsRotated) {
    x.first = _mm512_or_si512(shift<-1>(x.first), shift<15>(x.first));
    x.second = _mm512_or_si512(shift<-1>(x.second), shift<15>(x.second));
  } else {
    x.first = _mm512_and_si512(x.first, key_mask);
    x.second = _mm512_and_si512(x.second, key_mask);
  }
  return x;
}

// Puts the next record of a tile together at each call, so that a decoder can do so between its
// steps.
template <typename Classes, unsigned kClasses, unsigned kRawBits, bool kToItems>
class Restorer {
 public:
  BF16CODECS_INLINE Restorer(const TileShape& shape, const TileItems& items, TileEscapes& escapes)
      : key_mask_(words_of(shape.key_mask)),
        mask_(items.order->mask),
        first_(items.order->first),
        symbols_(items.symbols),
        scales_(items.scales),
        records_(items.records),
        out_(items.out),
        escapes_(escapes) {}

  BF16CODECS_INLINE void operator()() {
    __m512i v;
    if constexpr (kClasses == 1) {
      v = load(symbols_);
      symbols_ += 64;
    } else {
      // The indices are read from the order, because four pointers that advance would take four
      // registers.
      const uint16_t* const first = *first_++;
      const uint8_t* next[kTileClasses] = {symbols_ + first[0], symbols_ + first[1],
                                           symbols_ + first[2], symbols_ + first[3]};
      v = Classes::join(*mask_++, next);
    }
    const Halves x = restore_record<RawLayout<kRawBits, kToItems>>(v, scales_, records_, key_mask_);
    store(out_, x.first), store(out_ + 64, x.second);
    const uint64_t escaped = _mm512_testn_epi8_mask(v, v);
    if (escaped != 0) [[unlikely]]
      patch_escapes(escaped, kToItems, escapes_, out_);
    scales_ += 64, records_ += record_size(kRawBits), out_ += 128;
  }

 private:
  const __m512i key_mask_;
  const uint64_t (*mask_)[kTileClasses];
  const uint16_t (*first_)[kTileClasses];
  const uint8_t* symbols_;
  const uint16_t* scales_;
  const uint8_t* records_;
  uint8_t* out_;
  TileEscapes& escapes_;
};

// Implements TileKernels::restore for one shape.
template <typename Classes, unsigned kClasses, unsigned kRawBits, bool kToItems>
void restore_as(const TileShape& shape, const TileItems& items, TileEscapes& escapes) {
  Restorer<Classes, kClasses, kRawBits, kToItems> restore_next(shape, items, escapes);
  for (size_t i = 0; i < items.n; i += 64) restore_next();
}

// Stores bits kFrom ... kFrom + 3 of the keys: of the first 32 in the low halves of 32 bytes, of
// the others in the high halves.
template <int kFrom>
BF16CODECS_INLINE void save_part(const Halves& keys, uint8_t* part) {
  // 15 ? first >> kFrom : second << (4 - kFrom); only the low bytes are kept.
  const __m512i both = _mm512_ternarylogic_epi32(words_of(15), shift<-kFrom>(keys.first),
                                                 shift<4 - kFrom>(keys.second), 0xCA);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(part), _mm512_cvtepi16_epi8(both));
}

// Stores the raw bits of 64 keys as a record. The single bits come from tests, whose masks are in
// the order of the items.
template <unsigned kRawBits>
BF16CODECS_INLINE void save_record(const Halves& keys, uint8_t* record) {
  constexpr int kBits = kRawBits % 4, kParts = kRawBits / 4;
  if constexpr (kParts > 0) save_part<kBits>(keys, record);
  if constexpr (kParts > 1) save_part<kBits + 4>(keys, record + 32);
  record += 32 * kParts;
  BF16CODECS_UNROLL
  for (int k = 0; k < kBits; ++k) {
    const __m512i bit = words_of(1u << k);
    const uint32_t bits[2] = {_mm512_test_epi16_mask(keys.first, bit),
                              _mm512_test_epi16_mask(keys.second, bit)};
    std::memcpy(record + 8 * k, bits, sizeof bits);
  }
}

// The range of symbols, in words.
struct Range {
  __m512i first, size;
};

// symbol = (key >> R) + kSymbolOrigin - 8 E, or 0 if it is out of range. A symbol below the range
// wraps around, and is above it as an unsigned word.
template <unsigned kRawBits>
BF16CODECS_INLINE __m512i symbols_of(__m512i keys, const uint16_t* scales, const Range& range,
                                     __mmask32& in_range) {
  const __m512i eights = _mm512_and_si512(shift<-1>(load(scales)), words_of(0xFFF8));
  const __m512i high = _mm512_add_epi16(shift<-int{kRawBits}>(keys), words_of(kSymbolOrigin));
  const __m512i symbols = _mm512_sub_epi16(high, eights);
  in_range = _mm512_cmplt_epu16_mask(_mm512_sub_epi16(symbols, range.first), range.size);
  return _mm512_maskz_mov_epi16(in_range, symbols);
}

// Takes 64 keys apart, to a record and to symbols in the order of the items.
template <unsigned kRawBits>
BF16CODECS_INLINE uint16_t* arrange_record(const uint16_t* keys, const uint16_t* scales,
                                           const Range& range, uint8_t* symbols, uint8_t* record,
                                           uint16_t* escapes) {
  const Halves x = {load(keys), load(keys + 32)};
  save_record<kRawBits>(x, record);
  __mmask32 first, second;
  const __m512i a = symbols_of<kRawBits>(x.first, scales, range, first);
  const __m512i b = symbols_of<kRawBits>(x.second, scales + 32, range, second);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(symbols), _mm512_cvtepi16_epi8(a));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(symbols + 32), _mm512_cvtepi16_epi8(b));
  const uint64_t escaped = ~(uint64_t{second} << 32 | first);
  if (escaped != 0) [[unlikely]]
    return save_escapes(escaped, keys, escapes);
  return escapes;
}

// Orders symbols class by class, in ascending order: what is written past the end of a class is in
// the place of the next ones, which overwrite it, or in the slack.
template <typename Classes>
BF16CODECS_INLINE void order_symbols(const TileOrder& order, const uint8_t* symbols, size_t n,
                                     uint8_t* ordered) {
  for (unsigned c = 0; c < kTileClasses; ++c) {
    if (order.begin[c] == order.begin[c + 1]) continue;
    uint8_t* next = ordered + order.begin[c];
    for (size_t i = 0; i < n; i += 64) Classes::append(order.mask[i / 64][c], symbols + i, next);
  }
}

// Implements TileKernels::arrange for one shape. With four classes, symbols are collected in the
// order of the items first, and then ordered.
template <typename Classes, unsigned kClasses, unsigned kRawBits>
uint16_t* arrange_as(const TileShape& shape, const TileOrder& order, const uint16_t* keys,
                     const uint16_t* scales, size_t n, uint8_t* symbols, uint8_t* records,
                     uint16_t* escapes) {
  const Range range = {words_of(shape.first),
                       words_of(static_cast<unsigned>(shape.end - shape.first))};
  alignas(64) uint8_t room[kClasses == 1 ? 64 : kMaxTileItems];
  uint8_t* const plain = kClasses == 1 ? symbols : room;
  for (size_t i = 0; i < n; i += 64, records += record_size(kRawBits)) {
    escapes = arrange_record<kRawBits>(keys + i, scales + i, range, plain + i, records, escapes);
  }
  if constexpr (kClasses != 1) order_symbols<Classes>(order, plain, n, symbols);
  return escapes;
}

// The choice of a kernel for a shape. By R: 0 and 1 are 8-bit keys, which are never made items; 2
// is float64, 5 bfloat16 and float32, 8 float16.

// Keys of 8 bits are never made items, and one kernel serves them for either value of kToItems.
template <typename Classes, unsigned kClasses, bool kToItems>
BF16CODECS_INLINE auto choose_restore(unsigned raw_bits) {
  switch (raw_bits) {
    case 0:
      return restore_as<Classes, kClasses, 0, false>;
    case 1:
      return restore_as<Classes, kClasses, 1, false>;
    case 2:
      return restore_as<Classes, kClasses, 2, kToItems>;
    case 5:
      return restore_as<Classes, kClasses, 5, kToItems>;
    default:
      return restore_as<Classes, kClasses, 8, kToItems>;
  }
}

template <typename Classes>
void restore(const TileShape& shape, const TileItems& items, TileEscapes& escapes) {
  const unsigned raw_bits = shape.raw_bits;
  const auto one = shape.to_items ? choose_restore<Classes, 1, true>(raw_bits)
                                  : choose_restore<Classes, 1, false>(raw_bits);
  const auto four = shape.to_items ? choose_restore<Classes, kTileClasses, true>(raw_bits)
                                   : choose_restore<Classes, kTileClasses, false>(raw_bits);
  const auto kernel = shape.classes == 1 ? one : four;
  kernel(shape, items, escapes);
}

template <typename Classes, unsigned kClasses>
BF16CODECS_INLINE auto choose_arrange(unsigned raw_bits) {
  switch (raw_bits) {
    case 0:
      return arrange_as<Classes, kClasses, 0>;
    case 1:
      return arrange_as<Classes, kClasses, 1>;
    case 2:
      return arrange_as<Classes, kClasses, 2>;
    case 5:
      return arrange_as<Classes, kClasses, 5>;
    default:
      return arrange_as<Classes, kClasses, 8>;
  }
}

template <typename Classes>
uint16_t* arrange(const TileShape& shape, const TileOrder& order, const uint16_t* keys,
                  const uint16_t* scales, size_t n, uint8_t* symbols, uint8_t* records,
                  uint16_t* escapes) {
  const auto kernel = shape.classes == 1 ? choose_arrange<Classes, 1>(shape.raw_bits)
                                         : choose_arrange<Classes, kTileClasses>(shape.raw_bits);
  return kernel(shape, order, keys, scales, n, symbols, records, escapes);
}

}  // namespace
}  // namespace bf16codecs
