// The difference mode's rANS coder for AVX-512 F, BW, DQ and VL (docs/format_differences.md,
// "Coding").
//
// The states of a group are 32-bit numbers in two registers, `even` with lanes 0-15 and `odd` with
// lanes 16-31, named after their items' places. All else is words of one register in the order of
// the items: of lane i at word 2 i, of lane 16 + i at word 2 i + 1. Decoders search for entries as
// avx512_delta.h describes; the encoder finds them by permutes.
//
// Each group of vector instructions is preceded by the scalar formula that it computes.

#include "kernels/x86/avx512_delta.h"

#include "kernels/delta_tables.h"
#include "kernels/groups.h"

namespace bf16codecs {
namespace {

struct Index {
  // 2 i - (d >> 15), where the shift gives -1 for negative numbers.
  static BF16CODECS_INLINE __m512i append(__m512i i, __m512i d) {
    return _mm512_sub_epi16(_mm512_add_epi16(i, i), _mm512_srai_epi16(d, 15));
  }
};

constexpr __mmask32 kOddWords = 0xAAAAAAAA;

// The states of a group. low_words() joins the low halves in the order of the items.
struct Group {
  __m512i even, odd;

  BF16CODECS_INLINE __m512i low_words() const {
    return _mm512_mask_blend_epi16(kOddWords, even, _mm512_slli_epi32(odd, 16));
  }
};

BF16CODECS_INLINE __m512i even_words(__m512i v) {
  return _mm512_and_si512(v, _mm512_set1_epi32(0xFFFF));
}
BF16CODECS_INLINE __m512i odd_words(__m512i v) {
  return _mm512_srli_epi32(v, 16);
}

// Decodes 32 numbers in classes c, whose entries were found.
template <unsigned kClassBits>
BF16CODECS_INLINE __m512i decode_group(const Search<kClassBits>& t, __m512i c, const Found& found,
                                       Group& x, uint32_t& escapes) {
  // r = raw[c];  q = entry == escape ? 0 : n[entry] + r
  const __m512i r = _mm512_permutexvar_epi16(c, t.raw);
  const __m512i bits = _mm512_permutexvar_epi16(found.entries, t.bits);
  const __m512i q = _mm512_max_epi16(_mm512_add_epi16(bits, r), _mm512_setzero_si512());
  const __m512i base = _mm512_sllv_epi16(_mm512_permutexvar_epi16(found.entries, t.base), r);
  escapes = _mm512_movepi16_mask(bits);

  // x = f (x >> 12) + rank, below 2^32; see the ranges in delta.cpp
  x.even = _mm512_add_epi32(_mm512_mullo_epi32(_mm512_srli_epi32(x.even, 12), even_words(found.f)),
                            even_words(found.rank));
  x.odd = _mm512_add_epi32(_mm512_mullo_epi32(_mm512_srli_epi32(x.odd, 12), odd_words(found.f)),
                           odd_words(found.rank));

  // number = (base << r) + (x & (2^q - 1));  x >>= q. q is at most 14, so the low words of x are
  // enough. base << r has 0 in the q low bits: 0xF2 is a | ~b & c.
  const __m512i above = _mm512_sllv_epi16(words_of(0xFFFF), q);
  const __m512i numbers = _mm512_ternarylogic_epi32(base, above, x.low_words(), 0xF2);
  x.even = _mm512_srlv_epi32(x.even, even_words(q));
  x.odd = _mm512_srlv_epi32(x.odd, odd_words(q));
  return numbers;
}

// if (x < 2^16) x = x << 16 | next word, lane by lane: expand gives the k-th lane of the mask the
// k-th word. It always loads 16 words. The expansion merges into x, because with zeroing Zen 5
// waits for the destination's old value.
BF16CODECS_INLINE void renormalize(__m512i& x, const uint8_t*& words) {
  const __mmask16 low = _mm512_cmplt_epu32_mask(x, _mm512_set1_epi32(kLowestState));
  const __m512i next = _mm512_mask_expand_epi32(x, low, _mm512_cvtepu16_epi32(load32(words)));
  words += 2 * popcount(low);
  x = _mm512_or_si512(_mm512_maskz_slli_epi32(low, x, 16), next);
}

template <unsigned kGroups, unsigned kClassBits>
void decode_steps(DeltaDecoder& d, const DeltaTables& tables, const uint8_t* classes, size_t steps,
                  uint16_t* numbers, uint32_t* escapes) {
  const Search<kClassBits> search(tables);
  Group x[kGroups];
  for (unsigned g = 0; g < kGroups; ++g) x[g] = {load(d.x + 32 * g), load(d.x + 32 * g + 16)};
  const uint8_t* words = d.words;
  for (size_t step = 0; step < steps; step += kGroups) {
    __m512i c[kGroups], slots[kGroups];
    Found found[kGroups];
    BF16CODECS_UNROLL
    for (unsigned g = 0; g < kGroups; ++g) {
      c[g] = _mm512_cvtepu8_epi16(load32(classes + kDeltaStep * g)), slots[g] = x[g].low_words();
    }
    find<Index, kGroups>(search, c, slots, found);
    BF16CODECS_UNROLL
    for (unsigned g = 0; g < kGroups; ++g) {
      store(numbers + kDeltaStep * g,
            decode_group(search, c[g], found[g], x[g], escapes[step + g]));
    }
    BF16CODECS_UNROLL
    for (unsigned g = 0; g < kGroups; ++g) {
      renormalize(x[g].even, words);
      renormalize(x[g].odd, words);
    }
    classes += kDeltaStep * kGroups, numbers += kDeltaStep * kGroups;
  }
  for (unsigned g = 0; g < kGroups; ++g) {
    store(d.x + 32 * g, x[g].even), store(d.x + 32 * g + 16, x[g].odd);
  }
  d.words = words;
}

void decode(DeltaDecoder& d, const DeltaTables& tables, const uint8_t* classes, size_t steps,
            uint16_t* numbers, uint32_t* escapes) {
  with_groups(d.groups, [&](auto groups) {
    const auto kernel = tables.classes <= 8 ? decode_steps<groups(), 3> : decode_steps<groups(), 4>;
    kernel(d, tables, classes, steps, numbers, escapes);
  });
}

// The entries of v below 64, all that two registers hold.
struct EntryOf {
  uint16_t entry[64];
};

constexpr EntryOf make_entry_of() {
  EntryOf table{};
  for (unsigned v = 0; v < 64; ++v) {
    unsigned j = kDeltaEscape - 1;
    while (kDeltaBase[j] > v) --j;
    table.entry[v] = static_cast<uint16_t>(j);
  }
  return table;
}

alignas(64) constexpr EntryOf kEntryOf = make_entry_of();

// The tables of up to 2^kClassBits classes, for encoding. The starts of the escapes are in a
// register.
template <unsigned kClassBits>
struct CodeTables {
  const DeltaTables& all;
  __m512i raw, escape_start;

  BF16CODECS_INLINE explicit CodeTables(const DeltaTables& t) : all(t) {
    alignas(64) uint16_t start[32] = {};
    for (unsigned c = 0; c < kDeltaClasses; ++c) {
      start[c] = t.start[kDeltaEntries * c + kDeltaEscape];
    }
    raw = load_raw(t);
    escape_start = load(start);
  }

  // table[16 c + j]. A permute takes the low 6 bits of the index, which is 64 words in two
  // registers; bits 2 and 3 of the class choose between four such pairs.
  BF16CODECS_INLINE __m512i look_up(const uint16_t* table, __m512i c, __m512i j) const {
    const __m512i i = _mm512_or_si512(_mm512_slli_epi16(c, 4), j);
    const auto of4 = [&](unsigned first) {
      const uint16_t* const t = table + kDeltaEntries * first;
      return _mm512_mask_blend_epi16(_mm512_test_epi16_mask(c, words_of(4)),
                                     _mm512_permutex2var_epi16(load(t), i, load(t + 32)),
                                     _mm512_permutex2var_epi16(load(t + 64), i, load(t + 96)));
    };
    if constexpr (kClassBits == 3) return of4(0);
    return _mm512_mask_blend_epi16(_mm512_test_epi16_mask(c, words_of(8)), of4(0), of4(8));
  }
};

// The entries of 32 items and their raw bits, in words.
struct Symbols {
  __m512i f, q, raw, start;
};

BF16CODECS_INLINE Symbols even_words(const Symbols& s) {
  return {even_words(s.f), even_words(s.q), even_words(s.raw), even_words(s.start)};
}
BF16CODECS_INLINE Symbols odd_words(const Symbols& s) {
  return {odd_words(s.f), odd_words(s.q), odd_words(s.raw), odd_words(s.start)};
}

// v = number >> r;  q << 12 | f = coder[16 c + entry of v]. Where f is 0 the item is an escape:
// that is the last entry, so that its f is 4096 - start, and needs no look-up.
template <unsigned kClassBits>
BF16CODECS_INLINE Symbols prepare(const CodeTables<kClassBits>& t, const uint8_t* classes,
                                  const uint16_t* numbers, uint32_t& escapes) {
  const __m512i c = _mm512_cvtepu8_epi16(load32(classes)), number = load(numbers);
  const __m512i v = _mm512_srlv_epi16(number, _mm512_permutexvar_epi16(c, t.raw));
  __m512i entry = _mm512_permutex2var_epi16(load(kEntryOf.entry), v, load(kEntryOf.entry + 32));
  const __mmask32 is_last = _mm512_cmpge_epu16_mask(v, words_of(64));
  const __mmask32 is_large = _mm512_cmpgt_epu16_mask(v, words_of(kMaxDeltaValue));
  entry = _mm512_mask_mov_epi16(entry, is_last, words_of(kDeltaEscape - 1));
  entry = _mm512_mask_mov_epi16(entry, is_large, words_of(kDeltaEscape));
  const __m512i coder = t.look_up(t.all.coder, c, entry);
  Symbols s;
  s.f = _mm512_and_si512(coder, words_of(4095));
  s.q = _mm512_srli_epi16(coder, 12);
  s.start = t.look_up(t.all.start, c, entry);
  const __mmask32 is_absent = _mm512_testn_epi16_mask(s.f, s.f);
  s.start = _mm512_mask_permutexvar_epi16(s.start, is_absent, c, t.escape_start);
  s.f = _mm512_mask_sub_epi16(s.f, is_absent, words_of(4096), s.start);
  s.q = _mm512_mask_mov_epi16(s.q, is_absent, _mm512_setzero_si512());
  s.raw = _mm512_andnot_si512(_mm512_sllv_epi16(words_of(0xFFFF), s.q), number);
  escapes = is_large | is_absent;
  return s;
}

// if (x >> (20 - q) >= f) emit x, x >>= 16, from the last lane to the first.
BF16CODECS_INLINE void emit(__m512i& x, const Symbols& s, uint8_t*& words) {
  const __m512i high = _mm512_srlv_epi32(x, _mm512_sub_epi32(_mm512_set1_epi32(20), s.q));
  const __mmask16 full = _mm512_cmpge_epu32_mask(high, s.f);
  const unsigned count = popcount(full);
  words -= 2 * count;
  _mm256_mask_storeu_epi16(words, static_cast<__mmask16>((1u << count) - 1),
                           _mm512_cvtepi32_epi16(_mm512_mask_compress_epi32(x, full, x)));
  x = _mm512_mask_srli_epi32(x, full, x, 16);
}

// x = x << q | raw;  x = x / f << 12 | (start + x % f)
//
// Both the conversion of x to binary32 and the division round towards zero, each by less than 2^-23
// of the result, so that the quotient is never too large. It is below 2^20, because either x >> (20
// - q) was below f, or a word was put out, x is below 2^16, and 2^q is at most 16 f. So it lacks
// less than 2^-2, and its integer part is at most 1 too small.
BF16CODECS_INLINE __m512i divide(__m512i x, const Symbols& s) {
  constexpr int kDown = _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC;
  x = _mm512_or_si512(_mm512_sllv_epi32(x, s.q), s.raw);
  const __m512 quotient =
      _mm512_div_round_ps(_mm512_cvt_roundepu32_ps(x, kDown), _mm512_cvtepi32_ps(s.f), kDown);
  __m512i high = _mm512_cvttps_epi32(quotient);
  __m512i rest = _mm512_sub_epi32(x, _mm512_mullo_epi32(high, s.f));
  const __mmask16 short_by_1 = _mm512_cmpge_epu32_mask(rest, s.f);
  high = _mm512_mask_sub_epi32(high, short_by_1, high, _mm512_set1_epi32(-1));
  rest = _mm512_mask_sub_epi32(rest, short_by_1, rest, s.f);
  return _mm512_add_epi32(_mm512_slli_epi32(high, 12), _mm512_add_epi32(s.start, rest));
}

// Encodes a step of each group, phase by phase in turns: one after the other, four of them took 1.4
// times as long. Words are emitted from the last group and lane to the first.
template <unsigned kGroups, unsigned kClassBits>
BF16CODECS_INLINE void encode_groups(const CodeTables<kClassBits>& tables, const uint8_t* classes,
                                     const uint16_t* numbers, Group x[kGroups], uint8_t*& words,
                                     uint32_t* escapes) {
  Symbols s[kGroups];
  BF16CODECS_UNROLL
  for (unsigned g = 0; g < kGroups; ++g) {
    s[g] = prepare(tables, classes + kDeltaStep * g, numbers + kDeltaStep * g, escapes[g]);
  }
  BF16CODECS_UNROLL
  for (unsigned i = 0; i < kGroups; ++i) {
    const unsigned g = kGroups - 1 - i;
    emit(x[g].odd, odd_words(s[g]), words);
    emit(x[g].even, even_words(s[g]), words);
  }
  BF16CODECS_UNROLL
  for (unsigned g = 0; g < kGroups; ++g) {
    x[g] = {divide(x[g].even, even_words(s[g])), divide(x[g].odd, odd_words(s[g]))};
  }
}

template <unsigned kGroups, unsigned kClassBits>
void encode_steps(DeltaEncoder& e, const DeltaTables& t, const uint8_t* classes,
                  const uint16_t* numbers, size_t steps, uint32_t* escapes) {
  const CodeTables<kClassBits> tables(t);
  Group x[kGroups];
  for (unsigned g = 0; g < kGroups; ++g) x[g] = {load(e.x + 32 * g), load(e.x + 32 * g + 16)};
  uint8_t* words = e.words;
  while (steps != 0) {
    steps -= kGroups;
    encode_groups<kGroups>(tables, classes + kDeltaStep * steps, numbers + kDeltaStep * steps, x,
                           words, escapes + steps);
  }
  for (unsigned g = 0; g < kGroups; ++g) {
    store(e.x + 32 * g, x[g].even), store(e.x + 32 * g + 16, x[g].odd);
  }
  e.words = words;
}

}  // namespace

void avx512_delta_encode(DeltaEncoder& e, const DeltaTables& tables, const uint8_t* classes,
                         const uint16_t* numbers, size_t steps, uint32_t* escapes) {
  with_groups(e.groups, [&](auto groups) {
    const auto kernel = tables.classes <= 8 ? encode_steps<groups(), 3> : encode_steps<groups(), 4>;
    kernel(e, tables, classes, numbers, steps, escapes);
  });
}

const DeltaKernels kAvx512DeltaKernels = {
    .classify16 = avx512_delta_classify16,
    .subtract16 = avx512_delta_subtract16,
    .add16 = avx512_delta_add16,
    .decode = decode,
    .prepare = spread_search,
    .class_slots = 0,
    .encode = avx512_delta_encode,
};

}  // namespace bf16codecs
