// The pairs mode's kernels for AVX2 (docs/format.md, "rANS plane, pairs"). The states are those of
// x86/avx2_lanes.h. A group is decoded in two halves, lanes 0-7 with 16-23 and lanes 8-15 with
// 24-31, whose slots have the layout of x86/pairs.h. Each group of vector instructions is preceded
// by the scalar formula that it computes.

#include "kernels/pairs_decode.h"
#include "kernels/x86/avx2_lanes.h"
#include "kernels/x86/pairs.h"

namespace bf16codecs {
namespace {

// Looks bytes up in a row of the table. AVX2 has too few registers to keep the rows in them, so
// they are read from memory each time. The index is below 16.
BF16CODECS_INLINE __m256i look_up(const uint8_t row[64], __m256i index) {
  return _mm256_shuffle_epi8(_mm256_load_si256(reinterpret_cast<const __m256i*>(row)), index);
}

// a >= b, of unsigned bytes, for which AVX2 has no comparison.
BF16CODECS_INLINE __m256i at_least(__m256i a, __m256i b) {
  return _mm256_cmpeq_epi8(_mm256_max_epu8(a, b), a);
}

// Decodes 32 symbols from lanes 8 h ... 8 h + 7 and the 8 that are 16 lanes on, for half h. Symbols
// and entries have the layout of x86/pairs.h.
BF16CODECS_INLINE __m256i decode_half(const PairsTable& t, __m256i& even, __m256i& odd,
                                      __m256i& entries) {
  const __m256i nibble = _mm256_set1_epi8(15), byte = _mm256_set1_epi16(255);
  const __m256i slots = lower_halves(even, odd);

  // entry = base[bucket] + (slot >= threshold[bucket]), in the last bucket last[slot % 16]
  const __m256i bucket = _mm256_and_si256(_mm256_srli_epi16(slots, 4), nibble);
  __m256i e =
      _mm256_sub_epi8(look_up(t.base, bucket), at_least(slots, look_up(t.threshold, bucket)));
  e = _mm256_blendv_epi8(e, look_up(t.last, _mm256_and_si256(slots, nibble)),
                         _mm256_cmpeq_epi8(bucket, nibble));
  entries = e;

  // f = f[i] f[j] <= 65025,  r = f[i] (b - c[j]) + (a - c[i]) < f: both fit in words
  const __m256i frequency = look_up(t.frequency, e);
  const __m256i rest = _mm256_sub_epi8(slots, look_up(t.start, e));
  const __m256i fi = _mm256_and_si256(frequency, byte), fj = _mm256_srli_epi16(frequency, 8);
  const __m256i f = _mm256_mullo_epi16(fi, fj);
  const __m256i r = _mm256_add_epi16(_mm256_mullo_epi16(_mm256_srli_epi16(rest, 8), fi),
                                     _mm256_and_si256(rest, byte));
  // x = f (x >> 16) + r, below 2^32; the even lanes' f and r are in the even words, the odd lanes'
  // in the odd ones
  even = _mm256_add_epi32(_mm256_mullo_epi32(_mm256_srli_epi32(even, 16), even_lanes(f)),
                          even_lanes(r));
  odd =
      _mm256_add_epi32(_mm256_mullo_epi32(_mm256_srli_epi32(odd, 16), odd_lanes(f)), odd_lanes(r));
  return look_up(t.symbol, e);
}

// Puts 32 symbols of a half into a plane: places 16 h ... 16 h + 15 of the group, and those 32 on.
struct ToPlane : PlaneSink {
  BF16CODECS_INLINE void put(__m256i symbols, size_t at) {
    const __m256i byte = _mm256_set1_epi16(255);
    const __m256i packed = pack(_mm256_and_si256(symbols, byte), _mm256_srli_epi16(symbols, 8));
    store16(plane + at, _mm256_castsi256_si128(packed));
    store16(plane + at + 32, _mm256_extracti128_si256(packed, 1));
  }
};

// Puts 32 symbols of a half into items as their high bytes. Each word has a and b; shifts bring the
// one that is wanted to bits 7 to 14, where merge() takes it.
struct ToItems : ItemSink {
  BF16CODECS_INLINE void put(__m256i symbols, size_t at) {
    store(items + 2 * at, merge(_mm256_slli_epi16(symbols, 7), load16(low + at)));
    store(items + 2 * at + 64, merge(_mm256_srli_epi16(symbols, 1), load16(low + at + 32)));
  }
};

struct PairsGroup : Avx2Group {
  using Rows = const PairsTable&;

  template <typename Sink>
  BF16CODECS_INLINE DwordBytes decode(const PairsTable& table, Sink& sink, size_t at) {
    const __m256i escape = _mm256_set1_epi8(static_cast<char>(table.escape));
    uint32_t escaped[2];
    BF16CODECS_UNROLL
    for (unsigned h = 0; h < 2; ++h) {
      __m256i entries;
      sink.put(decode_half(table, x[h], x[2 + h], entries), at + 16 * h);
      escaped[h] = static_cast<uint32_t>(_mm256_movemask_epi8(_mm256_cmpeq_epi8(entries, escape)));
    }
    return {escaped[0] | uint64_t{escaped[1]} << 32};
  }
};

// table[index mod 16]. A permute looks at the low 3 bits of an index; a blend then chooses by bit
// 3, which is moved to the highest place.
BF16CODECS_INLINE __m256i look_up16(const uint32_t table[16], __m256i index) {
  const __m256 low = _mm256_castsi256_ps(_mm256_permutevar8x32_epi32(load(table), index));
  const __m256 high = _mm256_castsi256_ps(_mm256_permutevar8x32_epi32(load(table + 8), index));
  const __m256 bit3 = _mm256_castsi256_ps(_mm256_slli_epi32(index, 28));
  return _mm256_castps_si256(_mm256_blendv_ps(low, high, bit3));
}

BF16CODECS_INLINE __m256 look_up16(const float table[16], __m256i index) {
  const __m256 low = _mm256_permutevar8x32_ps(_mm256_loadu_ps(table), index);
  const __m256 high = _mm256_permutevar8x32_ps(_mm256_loadu_ps(table + 8), index);
  return _mm256_blendv_ps(low, high, _mm256_castsi256_ps(_mm256_slli_epi32(index, 28)));
}

// Unsigned numbers to binary32, for which AVX2 has no instruction. The halves, and the product with
// 2^16, are exact: the result is rounded once, in the sum, as by one conversion.
BF16CODECS_INLINE __m256 to_float(__m256i unsigned32) {
  const __m256i word = _mm256_set1_epi32(0xFFFF);
  const __m256 high = _mm256_cvtepi32_ps(_mm256_srli_epi32(unsigned32, 16));
  const __m256 low = _mm256_cvtepi32_ps(_mm256_and_si256(unsigned32, word));
  return _mm256_add_ps(_mm256_mul_ps(high, _mm256_set1_ps(65536.0f)), low);
}

// Puts the symbols of entries i and j on 8 states. Only the low 4 bits of i and j count.
BF16CODECS_INLINE void encode_lanes(const PairsEncoder& e, __m256i& x, __m256i i, __m256i j,
                                    uint8_t*& words) {
  const __m256i word = _mm256_set1_epi32(0xFFFF);
  const __m256i first = look_up16(e.entry, i), second = look_up16(e.entry, j);
  const __m256 first_inverse = look_up16(e.reciprocal, i);
  const __m256i f1 = _mm256_and_si256(first, word);
  // The product of the low words, at most 65025; that of the starts in the high words is dropped.
  const __m256i f = _mm256_and_si256(_mm256_mullo_epi16(first, second), word);
  emit(x, _mm256_cmpgt_epi32(f, odd_lanes(x)), words);  // x >> 16 >= f

  // q = x / f, r = x % f: the product is the quotient or one less (see kReciprocalBias)
  const __m256 inverse = _mm256_mul_ps(first_inverse, look_up16(e.reciprocal, j));
  __m256i q = _mm256_cvttps_epi32(_mm256_mul_ps(to_float(x), inverse));
  __m256i r = _mm256_sub_epi32(x, _mm256_mullo_epi32(q, f));
  const __m256i exact = _mm256_cmpgt_epi32(f, r);  // r < 2 f < 2^17: a signed comparison will do
  q = _mm256_add_epi32(q, _mm256_andnot_si256(exact, _mm256_set1_epi32(1)));
  r = _mm256_sub_epi32(r, _mm256_andnot_si256(exact, f));

  // r2 = r / f1 < 256, r1 = r % f1. (r + 0.5) / f1 is at least 0.5 / f1 > 2^-9 away from every
  // integer, and the bias and the roundings change it by less.
  const __m256i r2 = _mm256_cvttps_epi32(
      _mm256_mul_ps(_mm256_add_ps(_mm256_cvtepi32_ps(r), _mm256_set1_ps(0.5f)), first_inverse));
  const __m256i r1 = _mm256_sub_epi32(r, _mm256_mullo_epi16(r2, f1));
  const __m256i slot1 = _mm256_add_epi32(_mm256_srli_epi32(first, 16), r1);
  const __m256i slot2 = _mm256_add_epi32(_mm256_srli_epi32(second, 16), r2);
  // x = q << 16 | slot2 << 8 | slot1
  x = _mm256_or_si256(_mm256_slli_epi32(q, 16),
                      _mm256_or_si256(_mm256_slli_epi32(slot2, 8), slot1));
}

// The entries of 32 symbols: one shuffle for each row of 16 symbols in which some have an entry;
// exponents have few such rows. All other symbols are escapes.
BF16CODECS_INLINE __m256i find_entries(const PairsEncoder& e, __m256i symbols) {
  const __m256i nibble = _mm256_set1_epi8(15);
  const __m256i low = _mm256_and_si256(symbols, nibble);
  const __m256i high = _mm256_and_si256(_mm256_srli_epi16(symbols, 4), nibble);
  __m256i entries = _mm256_set1_epi8(static_cast<char>(e.escape));
  for (unsigned rows = e.rows; rows != 0; rows &= rows - 1) {
    const unsigned row = first_bit(rows);
    const __m256i table = _mm256_broadcastsi128_si256(load16(e.entry_of + 16 * row));
    entries = _mm256_blendv_epi8(entries, _mm256_shuffle_epi8(table, low),
                                 _mm256_cmpeq_epi8(high, _mm256_set1_epi8(static_cast<char>(row))));
  }
  return entries;
}

// The highest bits of 64 bytes.
BF16CODECS_INLINE uint64_t byte_mask(__m256i low, __m256i high) {
  return static_cast<uint32_t>(_mm256_movemask_epi8(low)) |
         static_cast<uint64_t>(static_cast<uint32_t>(_mm256_movemask_epi8(high))) << 32;
}

// Encodes a group's 64 symbols, eight lanes at a time from the last ones to the first, as the words
// need it.
BF16CODECS_INLINE void encode_group(PairsEncoder& e, const uint8_t* symbols, uint32_t lanes[32],
                                    uint8_t*& words) {
  const __m256i escape = _mm256_set1_epi8(static_cast<char>(e.escape));
  const __m256i a = find_entries(e, load(symbols)), b = find_entries(e, load(symbols + 32));
  // Entries of lanes k and 16 + k are the bytes (even, odd, 0, 0) of dword k mod 8 of half k div 8.
  const __m256i first[2] = {_mm256_cvtepu16_epi32(_mm256_castsi256_si128(a)),
                            _mm256_cvtepu16_epi32(_mm256_extracti128_si256(a, 1))};
  const __m256i second[2] = {_mm256_cvtepu16_epi32(_mm256_castsi256_si128(b)),
                             _mm256_cvtepu16_epi32(_mm256_extracti128_si256(b, 1))};
  BF16CODECS_UNROLL
  for (unsigned turn = 0; turn < 4; ++turn) {
    const unsigned i = 3 - turn, h = i % 2;
    __m256i x = load(lanes + 8 * i);
    const __m256i j = i >= 2 ? _mm256_srli_epi32(first[h], 8) : first[h];
    const __m256i k = i >= 2 ? _mm256_srli_epi32(second[h], 8) : second[h];
    encode_lanes(e, x, j, k, words);
    store(lanes + 8 * i, x);
  }
  const uint64_t escaped = byte_mask(_mm256_cmpeq_epi8(a, escape), _mm256_cmpeq_epi8(b, escape));
  if (escaped != 0) [[unlikely]]
    save_escapes(e, escaped, symbols);
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
  uint8_t* words = e.words;
  for (size_t group = steps * e.groups; group-- != 0;) {
    encode_group(e, plane + 64 * group, e.x + 32 * (group % e.groups), words);
  }
  e.words = words;
}

}  // namespace bf16codecs
