// The pairs mode's kernels for AVX-512 (docs/format.md, "rANS plane, pairs").
//
// The states of a group are 32-bit numbers in two registers, `even` with lanes 0-15 and `odd` with
// lanes 16-31, named after their symbols' places. To find entries, their low halves are joined to
// one register of 64 slots, four in each dword:
//
//   byte      0        1            2            3
//   slot      a        b            a            b
//   lane      i        i            16 + i       16 + i
//   symbol    2 i      2 i + 32     2 i + 1      2 i + 33
//
// Entries and symbols that are found by these slots have the same layout: the low bytes of words
// are symbols 0-31 in order, their high bytes symbols 32-63. Frequencies, remainders and products
// are words, of the even lanes in the even words and of the odd lanes in the odd ones, until they
// are extended to 32 bits for the new states.
//
// Each group of vector instructions is preceded by the scalar formula that it computes.

#include "kernels/x86/avx512_pairs.h"
#include "kernels/pairs_decode.h"

namespace bf16codecs {
namespace {

// The escapes of a group, as a mask of the bytes of its entries in the layout above.
struct DwordBytes {
  uint64_t bytes;

  BF16CODECS_INLINE bool any() const { return bytes != 0; }
  // The mask by symbols: byte `at` is symbol 2 (at / 4), one more if it is of the odd lane, and 32
  // more if it is of slot b.
  uint64_t mask() const {
    uint64_t symbols = 0;
    for (uint64_t left = bytes; left != 0; left &= left - 1) {
      const unsigned at = first_bit(left);
      symbols |= uint64_t{1} << (2 * (at / 4) + (at % 4 >> 1) + (at & 1) * 32);
    }
    return symbols;
  }
};

// Decodes 64 symbols of two registers of states. Symbols and entries have the layout above. Both
// look-ups of a lane start from the old state, so that the chain from state to state is half as
// long as with one symbol after the other (docs/design_codecs.md, "Two symbols in one step").
BF16CODECS_INLINE __m512i decode_64(__m512i& even, __m512i& odd, const DecoderRows& t,
                                    __m512i& entries) {
  const __m512i word = _mm512_set1_epi32(0xFFFF);
  // The low halves of the odd states move to the odd words, over the high halves of the even ones.
  const Pairs p = look_up(t, _mm512_mask_blend_epi16(0xAAAAAAAA, even, _mm512_slli_epi32(odd, 16)));
  entries = p.entries;
  // x = f (x >> 16) + r, below 2^32; the even lanes' f and r are in the even words, the odd lanes'
  // in the odd ones
  even =
      _mm512_add_epi32(_mm512_mullo_epi32(_mm512_srli_epi32(even, 16), _mm512_and_si512(p.f, word)),
                       _mm512_and_si512(p.r, word));
  odd = _mm512_add_epi32(_mm512_mullo_epi32(_mm512_srli_epi32(odd, 16), _mm512_srli_epi32(p.f, 16)),
                         _mm512_srli_epi32(p.r, 16));
  return _mm512_shuffle_epi8(t.symbol, p.entries);
}

// if (x < 2^16) x = x << 16 | next word, lane by lane: expand gives the k-th lane of the mask the
// k-th word. It always loads 16 words, however many the lanes need; kWordMargin allows for that.
BF16CODECS_INLINE void renormalize(__m512i& x, const uint8_t*& words) {
  const __mmask16 low = _mm512_cmplt_epu32_mask(x, _mm512_set1_epi32(1 << 16));
  const __m512i next = _mm512_maskz_expand_epi32(low, _mm512_cvtepu16_epi32(load32(words)));
  words += 2 * popcount(low);
  x = _mm512_or_si512(_mm512_mask_slli_epi32(x, low, x, 16), next);
}

// Puts 64 symbols into a plane: the low bytes of the words, then the high ones.
struct ToPlane : PlaneSink {
  BF16CODECS_INLINE void put(__m512i symbols, size_t at) {
    const __m512i a = symbols, b = _mm512_srli_epi16(symbols, 8);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(plane + at), _mm512_cvtepi16_epi8(a));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(plane + at + 32), _mm512_cvtepi16_epi8(b));
  }
};

// Puts 64 symbols into items as their high bytes. Each word has a and b; shifts bring the one that
// is wanted to bits 7 to 14, where merge() takes it.
struct ToItems : ItemSink {
  BF16CODECS_INLINE void put(__m512i symbols, size_t at) {
    store(items + 2 * at, merge(_mm512_slli_epi16(symbols, 7), load32(low + at)));
    store(items + 2 * at + 64, merge(_mm512_srli_epi16(symbols, 1), load32(low + at + 32)));
  }
};

// Two registers of states: lanes 0-15 and 16-31.
struct Group {
  using Rows = DecoderRows;
  __m512i even, odd;

  BF16CODECS_INLINE void load(const uint32_t x[kLanesPerGroup]) {
    even = bf16codecs::load(x), odd = bf16codecs::load(x + 16);
  }
  BF16CODECS_INLINE void store(uint32_t x[kLanesPerGroup]) const {
    bf16codecs::store(x, even), bf16codecs::store(x + 16, odd);
  }
  template <typename Sink>
  BF16CODECS_INLINE DwordBytes decode(const Rows& rows, Sink& sink, size_t at) {
    __m512i entries;
    sink.put(decode_64(even, odd, rows, entries), at);
    return {_mm512_cmpeq_epi8_mask(entries, rows.escape)};
  }
  BF16CODECS_INLINE void renormalize(const uint8_t*& words) {
    bf16codecs::renormalize(even, words);
    bf16codecs::renormalize(odd, words);
  }
};

// The entries of the two symbols of 16 lanes.
struct Pair {
  __m512i first, second;  // frequency | start << 16
  __m512 first_inverse, second_inverse;
};

// if (x >> 16 >= f) emit x, x >>= 16, from the last lane to the first. Words go downwards in
// memory, so those of one register are stored at once in the order of its lanes, under those
// before.
BF16CODECS_INLINE void emit(__m512i& x, __m512i f, uint8_t*& words) {
  const __mmask16 full = _mm512_cmpge_epu32_mask(_mm512_srli_epi32(x, 16), f);
  const unsigned count = popcount(full);
  words -= 2 * count;
  _mm256_mask_storeu_epi16(words, static_cast<__mmask16>((1u << count) - 1),
                           _mm512_cvtepi32_epi16(_mm512_maskz_compress_epi32(full, x)));
  x = _mm512_mask_srli_epi32(x, full, x, 16);
}

// Puts two symbols on each of 16 states.
BF16CODECS_INLINE void encode_lanes(__m512i& x, const Pair& p, uint8_t*& words) {
  const __m512i word = _mm512_set1_epi32(0xFFFF);
  const __m512i f1 = _mm512_and_si512(p.first, word);
  // The product of the low words, at most 65025; that of the starts in the high words is dropped.
  const __m512i f = _mm512_and_si512(_mm512_mullo_epi16(p.first, p.second), word);
  emit(x, f, words);

  // q = x / f, r = x % f. The product is the quotient or one less (see kReciprocalBias); q < 2^16,
  // so that a signed conversion will do.
  const __m512 inverse = _mm512_mul_ps(p.first_inverse, p.second_inverse);
  __m512i q = _mm512_cvttps_epi32(_mm512_mul_ps(_mm512_cvtepu32_ps(x), inverse));
  __m512i r = _mm512_sub_epi32(x, _mm512_mullo_epi32(q, f));
  const __mmask16 short_by_1 = _mm512_cmpge_epu32_mask(r, f);
  q = _mm512_mask_sub_epi32(q, short_by_1, q, _mm512_set1_epi32(-1));
  r = _mm512_mask_sub_epi32(r, short_by_1, r, f);

  // r2 = r / f1 < 256, r1 = r % f1. (r + 0.5) / f1 is at least 0.5 / f1 > 2^-9 away from every
  // integer, and the bias and the roundings change it by less.
  const __m512i r2 = _mm512_cvttps_epi32(
      _mm512_mul_ps(_mm512_add_ps(_mm512_cvtepi32_ps(r), _mm512_set1_ps(0.5f)), p.first_inverse));
  const __m512i r1 = _mm512_sub_epi32(r, _mm512_mullo_epi16(r2, f1));
  const __m512i slot1 = _mm512_add_epi32(_mm512_srli_epi32(p.first, 16), r1);
  const __m512i slot2 = _mm512_add_epi32(_mm512_srli_epi32(p.second, 16), r2);
  // x = q << 16 | slot2 << 8 | slot1
  x = _mm512_or_si512(_mm512_slli_epi32(q, 16),
                      _mm512_or_si512(_mm512_slli_epi32(slot2, 8), slot1));
}

struct EncoderRows {
  __m512i entry;
  __m512 reciprocal;

  // The permutes look at the low 4 bits of an index alone.
  BF16CODECS_INLINE Pair pair(__m512i i, __m512i j) const {
    return {_mm512_permutexvar_epi32(i, entry), _mm512_permutexvar_epi32(j, entry),
            _mm512_permutexvar_ps(i, reciprocal), _mm512_permutexvar_ps(j, reciprocal)};
  }
};

// The entries of 64 symbols: one shuffle for each row of 16 symbols in which some have an entry;
// exponents have few such rows. All other symbols are escapes.
BF16CODECS_INLINE __m512i find_entries(const PairsEncoder& e, __m512i symbols) {
  const __m512i nibble = _mm512_set1_epi8(15);
  const __m512i low = _mm512_and_si512(symbols, nibble);
  const __m512i high = _mm512_and_si512(_mm512_srli_epi16(symbols, 4), nibble);
  __m512i entries = _mm512_set1_epi8(static_cast<char>(e.escape));
  for (unsigned rows = e.rows; rows != 0; rows &= rows - 1) {
    const unsigned row = first_bit(rows);
    const __m512i table = _mm512_broadcast_i32x4(
        _mm_load_si128(reinterpret_cast<const __m128i*>(e.entry_of + 16 * row)));
    entries = _mm512_mask_shuffle_epi8(
        entries, _mm512_cmpeq_epi8_mask(high, _mm512_set1_epi8(static_cast<char>(row))), table,
        low);
  }
  return entries;
}

// Encodes a group's 64 symbols.
BF16CODECS_INLINE void encode_group(PairsEncoder& e, const EncoderRows& rows,
                                    const uint8_t* symbols, uint32_t lanes[32], uint8_t*& words) {
  const __m512i entries = find_entries(e, load(symbols));
  // Entries i and j of lanes k and 16 + k, places 2 k and 2 k + 1, are the bytes (even, odd, 0, 0)
  // of dword k.
  const __m512i first = _mm512_cvtepu16_epi32(_mm512_castsi512_si256(entries));
  const __m512i second = _mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(entries, 1));
  __m512i even = load(lanes), odd = load(lanes + 16);
  encode_lanes(odd, rows.pair(_mm512_srli_epi32(first, 8), _mm512_srli_epi32(second, 8)), words);
  encode_lanes(even, rows.pair(first, second), words);
  store(lanes, even), store(lanes + 16, odd);
  const uint64_t escaped =
      _mm512_cmpeq_epi8_mask(entries, _mm512_set1_epi8(static_cast<char>(e.escape)));
  if (escaped != 0) [[unlikely]]
    save_escapes(e, escaped, symbols);
}

}  // namespace

size_t avx512_pairs_decode(PairsDecoder& d, const uint8_t* limit, uint8_t* plane, size_t steps) {
  return decode_pairs<Group>(d, limit, ToPlane{{plane}}, steps);
}

size_t avx512_pairs_decode16(PairsDecoder& d, const uint8_t* limit, const uint8_t* low,
                             uint8_t* items, size_t steps) {
  return decode_pairs<Group>(d, limit, ToItems{{low, items}}, steps);
}

// The states stay in memory between steps: keeping all eight registers of them was no faster
// (docs/experiments.md, "Encoding").
void avx512_pairs_encode(PairsEncoder& e, const uint8_t* plane, size_t steps) {
  const EncoderRows rows{load(e.entry), _mm512_loadu_ps(e.reciprocal)};
  uint8_t* words = e.words;
  for (size_t group = steps * e.groups; group-- != 0;) {
    encode_group(e, rows, plane + 64 * group, e.x + 32 * (group % e.groups), words);
  }
  e.words = words;
}

}  // namespace bf16codecs
