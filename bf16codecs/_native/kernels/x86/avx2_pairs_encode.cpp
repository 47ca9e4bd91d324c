// The pairs mode's encoder for AVX2, whose states are those of x86/avx2_words.h. Each group of
// vector instructions is preceded by the scalar formula that it computes.

#include "kernels/groups.h"
#include "kernels/pairs_escapes.h"
#include "kernels/x86/avx2_pairs.h"

namespace bf16codecs {
namespace {

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
    uint8_t rows[4][16];
    for (unsigned i = 0; i < 16; ++i) {
      const uint32_t f = e.entry[i] & 255, inverse = 0xFFFF / f;
      rows[0][i] = static_cast<uint8_t>(f);
      rows[1][i] = static_cast<uint8_t>(e.entry[i] >> 16);
      rows[2][i] = static_cast<uint8_t>(inverse);
      rows[3][i] = static_cast<uint8_t>(inverse >> 8);
    }
    frequency = twice(rows[0]), start = twice(rows[1]);
    inverse_low = twice(rows[2]), inverse_high = twice(rows[3]);
    SymbolRow* row = symbols;
    for (unsigned left = e.rows; left != 0; left &= left - 1, ++row) {
      const unsigned high_half = first_bit(left) << 4;
      store(row->high_half, _mm256_set1_epi8(static_cast<char>(high_half)));
      store(row->entries, _mm256_xor_si256(twice(e.entry_of + high_half), escape));
    }
    symbols_end = row;
  }
};

// What a step of 16 lanes needs, as words: f[i], f[j], c[j] << 8 | c[i], and f[i]'s inverse.
struct Step {
  __m256i first, second, start, inverse;
};

// x / f, where x < 2^16 f, rounded to the nearest integer, modulo 2^16.
BF16CODECS_INLINE __m256i nearest_quotients(const WordStates& x, __m256i f) {
  const FloatHalves of = to_floats(x.low, x.high), by = to_floats(f);
  const auto nearest = [](__m256 dividend, __m256 divisor) {
    return _mm256_and_si256(_mm256_cvtps_epi32(_mm256_div_ps(dividend, divisor)),
                            _mm256_set1_epi32(0xFFFF));
  };
  return _mm256_packus_epi32(nearest(of.lower, by.lower), nearest(of.upper, by.upper));
}

// Puts two symbols on each of 16 states, which have room for them.
BF16CODECS_INLINE void encode_lanes(WordStates& x, const Step& p, __m256i f) {
  // q = x / f, r = x % f. Of the nearest quotient, the remainder is a signed word (lanes.h, "The
  // nearest quotient"); if it is negative, the quotient is one too large.
  __m256i q = nearest_quotients(x, f);
  __m256i r = _mm256_sub_epi16(x.low, _mm256_mullo_epi16(q, f));
  const __m256i borrowed = _mm256_srai_epi16(r, 15);
  q = _mm256_add_epi16(q, borrowed);
  r = _mm256_add_epi16(r, _mm256_and_si256(borrowed, f));

  // r2 = r / f1, r1 = r % f1: the inverse is too small by at most 1, and r < 2^16, so that the
  // product is the quotient or one less; and then r1 - f1 is the smaller one of the two, modulo
  // 2^16.
  __m256i r2 = _mm256_mulhi_epu16(r, p.inverse);
  const __m256i s = _mm256_sub_epi16(r, _mm256_mullo_epi16(r2, p.first));
  const __m256i less = _mm256_sub_epi16(s, p.first);
  const __m256i r1 = _mm256_min_epu16(s, less);
  r2 = _mm256_sub_epi16(r2, _mm256_cmpeq_epi16(r1, less));
  // x = q << 16 | (c[j] + r2) << 8 | (c[i] + r1)
  x.high = q;
  x.low = _mm256_add_epi16(_mm256_add_epi16(p.start, r1), _mm256_slli_epi16(r2, 8));
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
BF16CODECS_INLINE void encode_group(PairsEncoder& e, const EncoderRows& t, const uint8_t* symbols,
                                    WordGroup& x, uint8_t*& words) {
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

  x.make_room({{f_even, f_odd}}, words);
  encode_lanes(x.lanes[0], even, f_even);
  encode_lanes(x.lanes[1], odd, f_odd);

  const uint64_t mask = byte_mask(_mm256_cmpeq_epi8(i, t.escape), _mm256_cmpeq_epi8(j, t.escape));
  if (mask != 0) [[unlikely]]
    save_escapes(e, mask, symbols);
}

}  // namespace

void avx2_pairs_encode(PairsEncoder& e, const uint8_t* plane, size_t steps) {
  const EncoderRows rows(e);
  States<WordGroup> groups(e);
  uint8_t* words = e.words;
  for (size_t step = steps * e.groups; step-- != 0;) {
    encode_group(e, rows, plane + kPairSymbols * step, *groups.of(step), words);
  }
  e.words = words;
  groups.store(e);
}

}  // namespace bf16codecs
