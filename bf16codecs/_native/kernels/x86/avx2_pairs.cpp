// The pairs mode's kernels for AVX2 (docs/format.md, "rANS plane, pairs").
//
// A state is held in two halves of 16 bits, those of 16 lanes in a register: products, remainders
// and comparisons of words cost half as much as those of 32-bit numbers, which AVX2 multiplies in
// two steps, and the low halves are the slots. `even` lanes are 0-15, `odd` ones 16-31; their words
// are in the order of the lanes, so that byte 2 k of the slots is lane k's first symbol, and byte
// 2 k + 1 its second, which is 32 places on.
//
// Each group of vector instructions is preceded by the scalar formula that it computes.

#include <algorithm>

#include "kernels/pairs_decode.h"
#include "kernels/x86/avx2.h"

namespace bf16codecs {
namespace {

// Byte shuffles of eight words by a mask. expand: word j is the next of the words if it is in the
// mask, otherwise 0. compress: the words of the mask move to the end, in order.
struct WordShuffles {
  alignas(16) uint8_t expand[256][16], compress[256][16];
};

constexpr WordShuffles make_word_shuffles() {
  WordShuffles shuffles{};
  for (unsigned m = 0; m < 256; ++m) {
    unsigned rank = 0, at = 8;
    for (unsigned j = 0; j < 8; ++j) {
      const bool is_set = (m >> j & 1) != 0;
      for (unsigned byte = 0; byte < 2; ++byte) {
        shuffles.expand[m][2 * j + byte] = is_set ? static_cast<uint8_t>(2 * rank + byte) : 128;
      }
      rank += is_set;
    }
    for (unsigned j = 8; j-- != 0;) {
      if ((m >> j & 1) == 0) continue;
      --at;
      for (unsigned byte = 0; byte < 2; ++byte) {
        shuffles.compress[m][2 * at + byte] = static_cast<uint8_t>(2 * j + byte);
      }
    }
  }
  return shuffles;
}

constexpr WordShuffles kWordShuffles = make_word_shuffles();

// Two halves of 128 bits from memory.
BF16CODECS_INLINE __m256i load_halves(const uint8_t* low, const uint8_t* high) {
  return _mm256_inserti128_si256(_mm256_castsi128_si256(load16(low)), load16(high), 1);
}

// a >= b, of unsigned numbers, for which AVX2 has no comparison.
BF16CODECS_INLINE __m256i bytes_at_least(__m256i a, __m256i b) {
  return _mm256_cmpeq_epi8(_mm256_max_epu8(a, b), a);
}
BF16CODECS_INLINE __m256i words_at_least(__m256i a, __m256i b) {
  return _mm256_cmpeq_epi16(_mm256_max_epu16(a, b), a);
}

// An index into a row of 16 bytes that has its highest bit set, and so selects 0, unless a byte's
// high half is that of `row`, whose bytes are 16 times the row's number.
BF16CODECS_INLINE __m256i index_in_row(__m256i bytes, __m256i row) {
  return _mm256_adds_epu8(_mm256_xor_si256(bytes, row), _mm256_set1_epi8(0x70));
}

// The first bytes of 16 words and the first bytes of 16 others in turn, and the second ones.
BF16CODECS_INLINE __m256i first_bytes(__m256i even, __m256i odd) {
  return _mm256_or_si256(_mm256_and_si256(even, _mm256_set1_epi16(255)), _mm256_slli_epi16(odd, 8));
}
BF16CODECS_INLINE __m256i second_bytes(__m256i even, __m256i odd) {
  return _mm256_or_si256(_mm256_srli_epi16(even, 8),
                         _mm256_andnot_si256(_mm256_set1_epi16(255), odd));
}

// The highest bits of 64 bytes.
BF16CODECS_INLINE uint64_t byte_mask(__m256i low, __m256i high) {
  return static_cast<uint32_t>(_mm256_movemask_epi8(low)) |
         static_cast<uint64_t>(static_cast<uint32_t>(_mm256_movemask_epi8(high))) << 32;
}

// A mask of the lanes of a group, as movemask gives it: of lanes 0-7, 16-23, 8-15 and 24-31 from
// the lowest bit up. Words belong to lanes in turns of eight.
struct LaneMask {
  static constexpr unsigned kTurnAt[4] = {0, 16, 8, 24};
  static constexpr uint32_t kBefore[4] = {0, 0x000000FF, 0x00FF00FF, 0x00FFFFFF};
  uint32_t bits;

  LaneMask(__m256i even, __m256i odd)
      : bits(static_cast<uint32_t>(_mm256_movemask_epi8(_mm256_packs_epi16(even, odd)))) {}

  // The bytes of the words of all lanes, of those before a turn, and of those after it.
  BF16CODECS_INLINE size_t size() const { return 2 * size_t{popcount(bits)}; }
  BF16CODECS_INLINE size_t size_before(unsigned turn) const {
    return 2 * size_t{popcount(bits & kBefore[turn])};
  }
  BF16CODECS_INLINE size_t size_after(unsigned turn) const {
    return turn == 3 ? 0 : 2 * size_t{popcount(bits & ~kBefore[turn + 1])};
  }
  // The shuffles of two turns, `turn` and the next one.
  BF16CODECS_INLINE __m256i shuffles(const uint8_t by_mask[256][16], unsigned turn) const {
    return load_halves(by_mask[bits >> kTurnAt[turn] & 255],
                       by_mask[bits >> kTurnAt[turn + 1] & 255]);
  }
};

// The states of 16 lanes.
struct WordStates {
  __m256i low, high;

  BF16CODECS_INLINE void load(const uint32_t x[16]) {
    const __m256i word = _mm256_set1_epi32(0xFFFF);
    const __m256i a = bf16codecs::load(x), b = bf16codecs::load(x + 8);
    low = in_order(_mm256_packus_epi32(_mm256_and_si256(a, word), _mm256_and_si256(b, word)));
    high = in_order(_mm256_packus_epi32(_mm256_srli_epi32(a, 16), _mm256_srli_epi32(b, 16)));
  }
  BF16CODECS_INLINE void store(uint32_t x[16]) const {
    const __m256i l = in_order(low), h = in_order(high);
    bf16codecs::store(x, _mm256_unpacklo_epi16(l, h));
    bf16codecs::store(x + 8, _mm256_unpackhi_epi16(l, h));
  }

 private:
  // Exchanges the middle quarters, which packs and unpacks of two halves of 128 bits leave
  // exchanged.
  static BF16CODECS_INLINE __m256i in_order(__m256i v) { return _mm256_permute4x64_epi64(v, 0xD8); }
};

// The rows of the table for both halves of a register. `last` is what is to be added, in the last
// bucket, to the entry that base and threshold give.
struct DecoderRows {
  __m256i base, threshold, last, frequency, start, symbol, escape;
  explicit DecoderRows(const PairsTable& t)
      : base(load(t.base)),
        threshold(load(t.threshold)),
        frequency(load(t.frequency)),
        start(load(t.start)),
        symbol(load(t.symbol)),
        escape(_mm256_set1_epi8(static_cast<char>(t.escape))) {
    alignas(32) uint8_t correction[32];
    for (unsigned i = 0; i < 32; ++i) {
      const unsigned found = t.base[15] + (0xF0 + i % 16 >= t.threshold[15] ? 1u : 0u);
      correction[i] = static_cast<uint8_t>(t.last[i] - found);
    }
    last = load(correction);
  }
};

// Decodes 32 symbols of 16 lanes; words of symbols and of entries are those of the lanes.
BF16CODECS_INLINE __m256i decode_lanes(const DecoderRows& t, WordStates& x, __m256i& entries) {
  const __m256i byte = _mm256_set1_epi16(255);
  const __m256i last_row = _mm256_set1_epi8(static_cast<char>(0xF0));
  const __m256i slots = x.low;

  // entry = base[bucket] + (slot >= threshold[bucket]) + (in the last bucket last[slot % 16])
  const __m256i bucket = _mm256_and_si256(_mm256_srli_epi16(slots, 4), _mm256_set1_epi8(15));
  const __m256i above = bytes_at_least(slots, _mm256_shuffle_epi8(t.threshold, bucket));
  const __m256i e = _mm256_add_epi8(_mm256_sub_epi8(_mm256_shuffle_epi8(t.base, bucket), above),
                                    _mm256_shuffle_epi8(t.last, index_in_row(slots, last_row)));
  entries = e;

  // f = f[i] f[j] <= 65025,  r = f[i] (b - c[j]) + (a - c[i]) < f: both fit in words
  const __m256i frequency = _mm256_shuffle_epi8(t.frequency, e);
  const __m256i rest = _mm256_sub_epi8(slots, _mm256_shuffle_epi8(t.start, e));
  const __m256i fi = _mm256_and_si256(frequency, byte), fj = _mm256_srli_epi16(frequency, 8);
  const __m256i f = _mm256_mullo_epi16(fi, fj);
  const __m256i r = _mm256_add_epi16(_mm256_mullo_epi16(_mm256_srli_epi16(rest, 8), fi),
                                     _mm256_and_si256(rest, byte));
  // x = f (x >> 16) + r, below 2^32. The sum of the low halves carries if it is below r.
  x.low = _mm256_add_epi16(_mm256_mullo_epi16(f, x.high), r);
  const __m256i carry = _mm256_min_epu16(_mm256_subs_epu16(r, x.low), _mm256_set1_epi16(1));
  x.high = _mm256_add_epi16(_mm256_mulhi_epu16(f, x.high), carry);
  return _mm256_shuffle_epi8(t.symbol, e);
}

// if (x < 2^16) x = x << 16 | next word, where `next` has the words of the lanes that need one, and
// 0 elsewhere.
BF16CODECS_INLINE void shift_in(WordStates& x, __m256i needed, __m256i next) {
  x.high = _mm256_or_si256(x.high, _mm256_and_si256(needed, x.low));
  x.low = _mm256_or_si256(_mm256_andnot_si256(needed, x.low), next);
}

// Puts 64 symbols into a plane, or into items as their high bytes.
struct ToPlane : PlaneSink {
  BF16CODECS_INLINE void put(__m256i first, __m256i second, size_t at) {
    store(plane + at, first);
    store(plane + at + 32, second);
  }
};

struct ToItems : ItemSink {
  BF16CODECS_INLINE void put(__m256i first, __m256i second, size_t at) {
    put_32(first, at), put_32(second, at + 32);
  }

 private:
  // An item is the two bytes as a word, rotated right by one.
  BF16CODECS_INLINE void put_32(__m256i symbols, size_t at) {
    const __m256i l = load(low + at);
    const __m256i lower = rotate_back(_mm256_unpacklo_epi8(l, symbols));  // items 0-7 and 16-23
    const __m256i upper = rotate_back(_mm256_unpackhi_epi8(l, symbols));
    store16(items + 2 * at, _mm256_castsi256_si128(lower));
    store16(items + 2 * at + 16, _mm256_castsi256_si128(upper));
    store16(items + 2 * at + 32, _mm256_extracti128_si256(lower, 1));
    store16(items + 2 * at + 48, _mm256_extracti128_si256(upper, 1));
  }
  static BF16CODECS_INLINE __m256i rotate_back(__m256i v) {
    return _mm256_or_si256(_mm256_srli_epi16(v, 1), _mm256_slli_epi16(v, 15));
  }
};

// The escapes of a group: 255 in the bytes of a lane's symbols.
struct Escapes {
  __m256i even, odd;

  BF16CODECS_INLINE bool any() const {
    return _mm256_movemask_epi8(_mm256_or_si256(even, odd)) != 0;
  }
  BF16CODECS_INLINE uint64_t mask() const {
    return byte_mask(first_bytes(even, odd), second_bytes(even, odd));
  }
};

struct PairsGroup {
  using Rows = DecoderRows;
  WordStates even, odd;

  BF16CODECS_INLINE void load(const uint32_t x[kLanesPerGroup]) { even.load(x), odd.load(x + 16); }
  BF16CODECS_INLINE void store(uint32_t x[kLanesPerGroup]) const {
    even.store(x), odd.store(x + 16);
  }
  template <typename Sink>
  BF16CODECS_INLINE Escapes decode(const Rows& rows, Sink& sink, size_t at) {
    __m256i entries[2];
    const __m256i s = decode_lanes(rows, even, entries[0]);
    const __m256i t = decode_lanes(rows, odd, entries[1]);
    sink.put(first_bytes(s, t), second_bytes(s, t), at);
    return {_mm256_cmpeq_epi8(entries[0], rows.escape), _mm256_cmpeq_epi8(entries[1], rows.escape)};
  }
  BF16CODECS_INLINE void renormalize(const uint8_t*& words) {
    const __m256i low_even = _mm256_cmpeq_epi16(even.high, _mm256_setzero_si256());
    const __m256i low_odd = _mm256_cmpeq_epi16(odd.high, _mm256_setzero_si256());
    const LaneMask needed(low_even, low_odd);
    const auto next = [&](unsigned turn) {  // and of the turn after it
      const __m256i all =
          load_halves(words + needed.size_before(turn), words + needed.size_before(turn + 1));
      return _mm256_shuffle_epi8(all, needed.shuffles(kWordShuffles.expand, turn));
    };
    shift_in(even, low_even, next(0));
    shift_in(odd, low_odd, next(2));
    words += needed.size();
  }
};

// Sixteen symbols: 16 times the row's number, and their entries, both 32 times; entries are xored
// with the escape's, which those of other rows are.
struct SymbolRow {
  alignas(32) uint8_t high_half[32], entries[32];
};

// An encoder's table: by entry, for both halves of a register, and by symbol.
struct EncoderRows {
  __m256i frequency, start;
  __m256i inverse_low, inverse_high;  // the bytes of (2^16 - 1) / frequency, rounded down
  __m256i escape;
  SymbolRow symbols[16];
  const SymbolRow* symbols_end;

  explicit EncoderRows(const PairsEncoder& e)
      : escape(_mm256_set1_epi8(static_cast<char>(e.escape))), symbols_end(symbols) {
    alignas(32) uint8_t rows[4][32];
    for (unsigned i = 0; i < 32; ++i) {
      const uint32_t f = e.entry[i % 16] & 255, inverse = 0xFFFF / f;
      rows[0][i] = static_cast<uint8_t>(f);
      rows[1][i] = static_cast<uint8_t>(e.entry[i % 16] >> 16);
      rows[2][i] = static_cast<uint8_t>(inverse);
      rows[3][i] = static_cast<uint8_t>(inverse >> 8);
    }
    frequency = load(rows[0]), start = load(rows[1]);
    inverse_low = load(rows[2]), inverse_high = load(rows[3]);
    SymbolRow* row = symbols;
    for (unsigned left = e.rows; left != 0; left &= left - 1, ++row) {
      const unsigned high_half = first_bit(left) << 4;
      const __m128i entries = load16(e.entry_of + high_half);
      store(row->high_half, _mm256_set1_epi8(static_cast<char>(high_half)));
      store(row->entries, _mm256_xor_si256(_mm256_broadcastsi128_si256(entries), escape));
    }
    symbols_end = row;
  }
};

// What a step of 16 lanes needs, as words: f[i], f[j], c[j] << 8 | c[i], and f[i]'s inverse.
struct Step {
  __m256i first, second, start, inverse;
};

// x / f as binary32, where x < 2^16 f; the result is never above the quotient, and short of it by
// less than 7 2^-24 of it. Words with 0x5300 above them are 2^39 + 2^16 h, those with 0x4B00 are
// 2^23 + l; their sum with the constants off is rounded once. That, the division and the product
// make three roundings of 2^-24, which four of them outweigh.
BF16CODECS_INLINE __m256 quotient(__m256i high, __m256i low, __m256i f) {
  const __m256 above = _mm256_sub_ps(_mm256_castsi256_ps(high), _mm256_set1_ps(0x1p39f + 0x1p23f));
  const __m256 x = _mm256_add_ps(above, _mm256_castsi256_ps(low));
  return _mm256_mul_ps(_mm256_div_ps(x, _mm256_cvtepi32_ps(f)), _mm256_set1_ps(1 - 0x1p-22f));
}

// x div f, or one less, as words.
BF16CODECS_INLINE __m256i divide(const WordStates& x, __m256i f) {
  const __m256i above = _mm256_set1_epi16(0x5300), below = _mm256_set1_epi16(0x4B00);
  const __m256i zero = _mm256_setzero_si256();
  const __m256 a = quotient(_mm256_unpacklo_epi16(x.high, above),
                            _mm256_unpacklo_epi16(x.low, below), _mm256_unpacklo_epi16(f, zero));
  const __m256 b = quotient(_mm256_unpackhi_epi16(x.high, above),
                            _mm256_unpackhi_epi16(x.low, below), _mm256_unpackhi_epi16(f, zero));
  return _mm256_packus_epi32(_mm256_cvttps_epi32(a), _mm256_cvttps_epi32(b));
}

// The largest frequency with which a remainder of divide() fits in a word: the quotient lacks at
// most 7 2^-24 of 2^16, which is 0.028 f, and 1.028 x 252^2 < 2^16.
constexpr uint32_t kMostNarrow = 252;

// Where a remainder of divide() is 2^16 or more.
BF16CODECS_INLINE __m256i beyond_words(const WordStates& x, __m256i q, __m256i f) {
  const __m256i low = _mm256_mullo_epi16(q, f), high = _mm256_mulhi_epu16(q, f);
  const __m256i no_borrow = words_at_least(x.low, low);
  // x.high - high - borrow is 0 or 1
  const __m256i difference = _mm256_sub_epi16(_mm256_sub_epi16(x.high, high), no_borrow);
  return _mm256_cmpeq_epi16(difference, _mm256_set1_epi16(2));
}

// Puts two symbols on each of 16 states, which have room for them.
template <bool kWide>
BF16CODECS_INLINE void encode_lanes(WordStates& x, const Step& p, __m256i f) {
  // q = x / f, r = x % f. Where the quotient is one short, r >= f, and then r - f is the smaller
  // one of the two, modulo 2^16.
  __m256i q = divide(x, f);
  const __m256i r = _mm256_sub_epi16(x.low, _mm256_mullo_epi16(q, f));
  const __m256i less = _mm256_sub_epi16(r, f);
  __m256i rest = _mm256_min_epu16(r, less);
  __m256i is_short = _mm256_cmpeq_epi16(rest, less);
  if constexpr (kWide) {
    is_short = _mm256_or_si256(is_short, beyond_words(x, q, f));
    rest = _mm256_blendv_epi8(r, less, is_short);
  }
  q = _mm256_sub_epi16(q, is_short);

  // r2 = r / f1, r1 = r % f1, likewise: the inverse is too small by at most 1, and r < 2^16.
  __m256i r2 = _mm256_mulhi_epu16(rest, p.inverse);
  const __m256i s = _mm256_sub_epi16(rest, _mm256_mullo_epi16(r2, p.first));
  const __m256i s_less = _mm256_sub_epi16(s, p.first);
  const __m256i r1 = _mm256_min_epu16(s, s_less);
  r2 = _mm256_sub_epi16(r2, _mm256_cmpeq_epi16(r1, s_less));
  // x = q << 16 | (c[j] + r2) << 8 | (c[i] + r1)
  x.high = q;
  x.low = _mm256_add_epi16(_mm256_add_epi16(p.start, r1), _mm256_slli_epi16(r2, 8));
}

// if (x >> 16 >= f) emit x, x >>= 16.
BF16CODECS_INLINE void shift_out(WordStates& x, __m256i full) {
  x.low = _mm256_blendv_epi8(x.low, x.high, full);
  x.high = _mm256_andnot_si256(full, x.high);
}

// Stores the low halves of 16 lanes, two turns of the mask, from the last one to the first. Each
// turn stores 16 bytes whose upper ones are the words; the lower ones are noise that the next words
// overwrite, or that is in the kEncodeMargin.
BF16CODECS_INLINE void emit(const WordStates& x, LaneMask full, unsigned turn, uint8_t* words) {
  const __m256i emitted = _mm256_shuffle_epi8(x.low, full.shuffles(kWordShuffles.compress, turn));
  store16(words - full.size_after(turn + 1) - 16, _mm256_extracti128_si256(emitted, 1));
  store16(words - full.size_after(turn) - 16, _mm256_castsi256_si128(emitted));
}

// The entries of the symbols of two registers: one shuffle for each row of 16 symbols in which some
// have an entry; exponents have few such rows. All other symbols are escapes.
BF16CODECS_INLINE void find_entries(const EncoderRows& t, __m256i& first, __m256i& second) {
  const __m256i symbols[2] = {first, second};
  first = second = t.escape;
  for (const SymbolRow* row = t.symbols; row != t.symbols_end; ++row) {
    const __m256i table = load(row->entries), name = load(row->high_half);
    first = _mm256_xor_si256(first, _mm256_shuffle_epi8(table, index_in_row(symbols[0], name)));
    second = _mm256_xor_si256(second, _mm256_shuffle_epi8(table, index_in_row(symbols[1], name)));
  }
}

// Encodes a group's 64 symbols.
template <bool kWide>
BF16CODECS_INLINE void encode_group(PairsEncoder& e, const EncoderRows& t, const uint8_t* symbols,
                                    PairsGroup& x, uint8_t*& words) {
  const __m256i byte = _mm256_set1_epi16(255);
  // Byte 2 k is of lane k, byte 2 k + 1 of lane 16 + k.
  __m256i i = load(symbols), j = load(symbols + 32);
  find_entries(t, i, j);
  const __m256i fi = _mm256_shuffle_epi8(t.frequency, i), fj = _mm256_shuffle_epi8(t.frequency, j);
  const __m256i ci = _mm256_shuffle_epi8(t.start, i), cj = _mm256_shuffle_epi8(t.start, j);
  const __m256i low = _mm256_shuffle_epi8(t.inverse_low, i);
  const __m256i high = _mm256_shuffle_epi8(t.inverse_high, i);
  const Step even{_mm256_and_si256(fi, byte), _mm256_and_si256(fj, byte), first_bytes(ci, cj),
                  first_bytes(low, high)};
  const Step odd{_mm256_srli_epi16(fi, 8), _mm256_srli_epi16(fj, 8), second_bytes(ci, cj),
                 second_bytes(low, high)};
  const __m256i f_even = _mm256_mullo_epi16(even.first, even.second);
  const __m256i f_odd = _mm256_mullo_epi16(odd.first, odd.second);

  const __m256i full_even = words_at_least(x.even.high, f_even);
  const __m256i full_odd = words_at_least(x.odd.high, f_odd);
  const LaneMask full(full_even, full_odd);
  emit(x.odd, full, 2, words);
  emit(x.even, full, 0, words);
  words -= full.size();
  shift_out(x.even, full_even), shift_out(x.odd, full_odd);

  encode_lanes<kWide>(x.even, even, f_even);
  encode_lanes<kWide>(x.odd, odd, f_odd);

  const uint64_t mask = byte_mask(_mm256_cmpeq_epi8(i, t.escape), _mm256_cmpeq_epi8(j, t.escape));
  if (mask != 0) [[unlikely]]
    save_escapes(e, mask, symbols);
}

template <bool kWide>
void encode_groups(PairsEncoder& e, const uint8_t* plane, size_t n) {
  const EncoderRows rows(e);
  States<PairsGroup> groups(e);
  uint8_t* words = e.words;
  while (n-- != 0) encode_group<kWide>(e, rows, plane + kPairSymbols * n, *groups.of(n), words);
  e.words = words;
  groups.store(e);
}

}  // namespace

size_t avx2_pairs_decode(PairsDecoder& d, const uint8_t* limit, uint8_t* plane, size_t steps) {
  return decode_pairs<PairsGroup>(d, limit, ToPlane{{plane}}, steps);
}

size_t avx2_pairs_decode16(PairsDecoder& d, const uint8_t* limit, const uint8_t* low,
                           uint8_t* items, size_t steps) {
  return decode_pairs<PairsGroup>(d, limit, ToItems{{low, items}}, steps);
}

void avx2_pairs_encode(PairsEncoder& e, const uint8_t* plane, size_t steps) {
  uint32_t most = 0;
  for (const uint32_t entry : e.entry) most = std::max(most, entry & 255);
  const auto encode = most <= kMostNarrow ? encode_groups<false> : encode_groups<true>;
  encode(e, plane, steps * e.groups);
}

}  // namespace bf16codecs
