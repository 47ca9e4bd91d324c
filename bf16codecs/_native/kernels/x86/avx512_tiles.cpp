// The tiles mode's kernels for AVX-512 F, BW, DQ and VL (docs/format_tiles.md, "Table classes" and
// "Tiles").
//
// The states of a group are 32-bit numbers in two registers, `even` with lanes 0-15 and `odd` with
// lanes 16-31, named after their symbols' places. Everything that is looked up is words of one
// register, of lane i at word 2 i and of lane 16 + i at word 2 i + 1: that is the order of the
// symbols. A table row of 32 words is a register, and a look-up a permute, which takes the low 5
// bits of each index.
//
// Each group of vector instructions is preceded by the scalar formula that it computes.
//
// Expansions and compressions merge into a register that holds something, even where the other
// lanes do not count: with zeroing, Zen 5 waits for what the destination had before, 1.1 ns instead
// of 0.24 where bytes and words were measured (docs/experiments.md, "Tiles").

#include "kernels/x86/avx512_tiles.h"

#include "kernels/groups.h"
#include "kernels/tiles_tables.h"

namespace bf16codecs {
namespace {

constexpr __mmask32 kOddWords = 0xAAAAAAAA;

// The states of a group. low_words() joins the low halves in the order of the symbols.
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

// Decodes 32 symbols, to words. Only the low 5 bits of an index count, so that a slot serves as its
// bucket and an alias word as its entry.
BF16CODECS_INLINE __m512i decode_group(Group& x, const TileTable& t) {
  // is_alias = p >= threshold[b], of words p << 8 | 255 and threshold << 8 | alias: with 255 below
  // p, the alias below the threshold does not change the outcome. 0xEA is a & b | c.
  const __m512i slots = x.low_words();
  const __m512i positions = _mm512_ternarylogic_epi32(_mm512_slli_epi16(slots, 3), words_of(0x7F00),
                                                      words_of(0xFF), 0xEA);
  const __m512i alias = _mm512_permutexvar_epi16(slots, load(t.alias));
  const __mmask32 is_alias = _mm512_cmpge_epu16_mask(positions, alias);
  // entry = is_alias ? alias[b] : b;  r = is_alias ? p + shift[b] : p
  const __m512i entries = _mm512_mask_blend_epi16(is_alias, slots, alias);
  const __m512i p = _mm512_srli_epi16(positions, 8);
  const __m512i r =
      _mm512_mask_add_epi16(p, is_alias, p, _mm512_permutexvar_epi16(slots, load(t.shift)));

  // x = f (x >> 12) + r, below 2^32; see the ranges in tiles.cpp
  const __m512i coder = _mm512_permutexvar_epi16(entries, load(t.coder));
  const __m512i f = _mm512_and_si512(coder, words_of(0x1FFF)), n = _mm512_srli_epi16(coder, 13);
  x.even = _mm512_add_epi32(_mm512_mullo_epi32(_mm512_srli_epi32(x.even, 12), even_words(f)),
                            even_words(r));
  x.odd = _mm512_add_epi32(_mm512_mullo_epi32(_mm512_srli_epi32(x.odd, 12), odd_words(f)),
                           odd_words(r));

  // symbol = base | x & (2^n - 1);  x >>= n
  const __m512i base = _mm512_permutexvar_epi16(entries, load(t.symbols));
  const __m512i symbols =
      _mm512_ternarylogic_epi32(x.low_words(), _mm512_srli_epi16(base, 8), base, 0xEA);
  x.even = _mm512_srlv_epi32(x.even, even_words(n));
  x.odd = _mm512_srlv_epi32(x.odd, odd_words(n));
  return symbols;
}

// if (x < 2^16) x = x << 16 | next word, lane by lane: expand gives the k-th lane of the mask the
// k-th word. It always loads 16 words.
BF16CODECS_INLINE void renormalize(__m512i& x, const uint8_t*& words) {
  const __mmask16 low = _mm512_cmplt_epu32_mask(x, _mm512_set1_epi32(kLowestState));
  const __m512i next = _mm512_mask_expand_epi32(x, low, _mm512_cvtepu16_epi32(load32(words)));
  words += 2 * popcount(low);
  x = _mm512_or_si512(_mm512_maskz_slli_epi32(low, x, 16), next);
}

// Decodes a step of each group at a time, so that their chains from state to state overlap, and
// then hands out the words in the order of the groups.
template <unsigned kGroups>
void decode_steps(TileDecoder& d, const TileTable tables[], const uint8_t* classes, size_t steps,
                  uint8_t* symbols) {
  Group x[kGroups];
  for (unsigned g = 0; g < kGroups; ++g) x[g] = {load(d.x + 32 * g), load(d.x + 32 * g + 16)};
  const uint8_t* words = d.words;
  for (size_t step = 0; step < steps; step += kGroups, symbols += kStepItems * kGroups) {
    BF16CODECS_UNROLL
    for (unsigned g = 0; g < kGroups; ++g) {
      const __m512i decoded = decode_group(x[g], tables[classes[step + g]]);
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(symbols + kStepItems * g),
                          _mm512_cvtepi16_epi8(decoded));
    }
    BF16CODECS_UNROLL
    for (unsigned g = 0; g < kGroups; ++g) {
      renormalize(x[g].even, words);
      renormalize(x[g].odd, words);
    }
  }
  for (unsigned g = 0; g < kGroups; ++g) {
    store(d.x + 32 * g, x[g].even), store(d.x + 32 * g + 16, x[g].odd);
  }
  d.words = words;
}

// The entries of the lanes of a register, and their symbols; only the low n bits of a symbol count.
struct Lanes {
  __m512i f, n, symbols;
  __m512 reciprocal;
};

// if (x >> (20 - n) >= f) emit x, x >>= 16, from the last lane to the first.
BF16CODECS_INLINE void emit(__m512i& x, const Lanes& lanes, uint8_t*& words) {
  const __m512i high = _mm512_srlv_epi32(x, _mm512_sub_epi32(_mm512_set1_epi32(20), lanes.n));
  const __mmask16 full = _mm512_cmpge_epu32_mask(high, lanes.f);
  const unsigned count = popcount(full);
  words -= 2 * count;
  _mm256_mask_storeu_epi16(words, static_cast<__mmask16>((1u << count) - 1),
                           _mm512_cvtepi32_epi16(_mm512_mask_compress_epi32(x, full, x)));
  x = _mm512_mask_srli_epi32(x, full, x, 16);
}

struct Quotient {
  __m512i q, r;
};

// x = x << n | symbol & (2^n - 1);  q = x / f, r = x % f. The product is the quotient or one less,
// times 4096: a bias of 2^-21 outweighs four roundings of 2^-24 (the division, the bias, x, the
// product), and together they stay below 2^-20, so that a quotient below 2^20 lacks less than 1.
// 0xF2 is a | ~b & c.
BF16CODECS_INLINE Quotient divide(__m512i x, const Lanes& lanes) {
  const __m512i mask = _mm512_sllv_epi32(_mm512_set1_epi32(-1), lanes.n);
  x = _mm512_ternarylogic_epi32(_mm512_sllv_epi32(x, lanes.n), mask, lanes.symbols, 0xF2);
  __m512i q = _mm512_cvttps_epu32(_mm512_mul_ps(_mm512_cvtepu32_ps(x), lanes.reciprocal));
  q = _mm512_srli_epi32(q, 12);
  __m512i r = _mm512_sub_epi32(x, _mm512_mullo_epi32(q, lanes.f));
  const __mmask16 short_by_1 = _mm512_cmpge_epu32_mask(r, lanes.f);
  q = _mm512_mask_sub_epi32(q, short_by_1, q, _mm512_set1_epi32(-1));
  r = _mm512_mask_sub_epi32(r, short_by_1, r, lanes.f);
  return {q, r};
}

// The entries of 32 symbols, in words whose high bits are noise. Without VBMI there is no permute
// of bytes: a symbol's pair of bytes is looked up as a word by symbol / 2, 64 words at a time in
// two registers, and then its byte is taken.
BF16CODECS_INLINE __m512i find_entries(const uint8_t entry_of[256], __m512i symbols) {
  const __m512i pairs = _mm512_srli_epi16(symbols, 1);
  const __m512i low = _mm512_permutex2var_epi16(load(entry_of), pairs, load(entry_of + 64));
  const __m512i high = _mm512_permutex2var_epi16(load(entry_of + 128), pairs, load(entry_of + 192));
  const __m512i found =
      _mm512_mask_blend_epi16(_mm512_test_epi16_mask(symbols, words_of(128)), low, high);
  return _mm512_mask_srli_epi16(found, _mm512_test_epi16_mask(symbols, words_of(1)), found, 8);
}

// P = first[entry] + r;  k = max(pieces[entry], piece_at[P / 32]);  while (P > last[k]) ++k;
// slot = 32 P + slot_offset[k]
//
// piece_at has bytes, which are looked up in pairs as above. The loop looks `from` up in the table
// moved by i words, and counts how many of the next t.steps pieces end before P: pieces ascend, so
// that is the same. Only the low 6 bits of an index count, so that noise above them does no harm.
BF16CODECS_INLINE __m512i find_slots(const TileCodeTable& t, __m512i entries, __m512i r) {
  const __m512i position = _mm512_add_epi16(r, _mm512_permutexvar_epi16(entries, load(t.first)));
  __m512i from = _mm512_permutex2var_epi16(load(t.piece_at), _mm512_srli_epi16(position, 6),
                                           load(t.piece_at + 64));
  from = _mm512_mask_srli_epi16(from, _mm512_test_epi16_mask(position, words_of(32)), from, 8);
  from = _mm512_max_epu8(from, _mm512_permutexvar_epi16(entries, load(t.pieces)));
  __m512i k = from;
  for (unsigned i = 0; i < t.steps; ++i) {
    const __m512i last =
        _mm512_permutex2var_epi16(load(t.last + i), from, load(t.last + kTileEntries + i));
    const __m512i past = _mm512_subs_epu16(position, last);
    k = _mm512_add_epi16(k, _mm512_min_epu16(past, words_of(1)));
  }
  return _mm512_add_epi16(
      _mm512_slli_epi16(position, 5),
      _mm512_permutex2var_epi16(load(t.slot_offset), k, load(t.slot_offset + kTileEntries)));
}

BF16CODECS_INLINE __m512 look_up(const float table[kTileEntries], __m512i entries) {
  return _mm512_permutex2var_ps(_mm512_loadu_ps(table), entries, _mm512_loadu_ps(table + 16));
}

// Encodes a group's 32 symbols.
BF16CODECS_INLINE void encode_group(const TileCodeTable& t, const uint8_t* step, Group& x,
                                    uint8_t*& words) {
  const __m512i symbols = _mm512_cvtepu8_epi16(load32(step));
  const __m512i entries = find_entries(t.entry_of, symbols);
  const __m512i coder = _mm512_permutexvar_epi16(entries, load(t.coder));
  // Words of the even lanes are masked out of dwords, those of the odd lanes are shifted down.
  // Symbols and the indices of look-ups may have noise above them.
  const __m512i f_mask = _mm512_set1_epi32(0x1FFF), n_mask = _mm512_set1_epi32(7);
  const Lanes even = {_mm512_and_si512(coder, f_mask),
                      _mm512_and_si512(_mm512_srli_epi32(coder, 13), n_mask), symbols,
                      look_up(t.reciprocal, entries)};
  const Lanes odd = {_mm512_and_si512(odd_words(coder), f_mask), _mm512_srli_epi32(coder, 29),
                     odd_words(symbols), look_up(t.reciprocal, odd_words(entries))};
  emit(x.odd, odd, words);
  emit(x.even, even, words);
  const Quotient a = divide(x.even, even), b = divide(x.odd, odd);
  const __m512i slots = find_slots(t, entries, Group{a.r, b.r}.low_words());
  // x = q << 12 | slot
  x.even = _mm512_or_si512(_mm512_slli_epi32(a.q, 12), even_words(slots));
  x.odd = _mm512_or_si512(_mm512_slli_epi32(b.q, 12), odd_words(slots));
}

template <unsigned kGroups>
void encode_steps(TileEncoder& e, const TileCodeTable tables[], const uint8_t* classes,
                  size_t steps, const uint8_t* symbols) {
  Group x[kGroups];
  for (unsigned g = 0; g < kGroups; ++g) x[g] = {load(e.x + 32 * g), load(e.x + 32 * g + 16)};
  uint8_t* words = e.words;
  while (steps != 0) {
    steps -= kGroups;
    BF16CODECS_UNROLL
    for (unsigned i = 0; i < kGroups; ++i) {
      const unsigned g = kGroups - 1 - i;
      encode_group(tables[classes[steps + g]], symbols + kStepItems * (steps + g), x[g], words);
    }
  }
  for (unsigned g = 0; g < kGroups; ++g) {
    store(e.x + 32 * g, x[g].even), store(e.x + 32 * g + 16, x[g].odd);
  }
  e.words = words;
}

// Expands and compresses symbols as dwords, 16 at a time: without VBMI2 there is no such
// instruction for bytes. With it, restoring runs at 31 GB/s instead of 14, arranging at 25 instead
// of 11.
struct Classes {
  static BF16CODECS_INLINE __m512i widened(const uint8_t* p) {
    return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }

  static BF16CODECS_INLINE __m512i join(const uint64_t mask[kTileClasses],
                                        const uint8_t* next[kTileClasses]) {
    __m128i symbols[4];
    BF16CODECS_UNROLL
    for (unsigned i = 0; i < 4; ++i) {
      __m512i x = widened(next[0]);  // anything: each place is in one mask
      BF16CODECS_UNROLL
      for (unsigned c = 0; c < kTileClasses; ++c) {
        const auto part = static_cast<__mmask16>(mask[c] >> 16 * i);
        x = _mm512_mask_expand_epi32(x, part, widened(next[c]));
        next[c] += popcount(part);
      }
      symbols[i] = _mm512_cvtepi32_epi8(x);
    }
    const __m512i half = _mm512_inserti32x4(_mm512_castsi128_si512(symbols[0]), symbols[1], 1);
    return _mm512_inserti32x4(_mm512_inserti32x4(half, symbols[2], 2), symbols[3], 3);
  }

  static BF16CODECS_INLINE void append(uint64_t mask, const uint8_t* symbols, uint8_t*& next) {
    BF16CODECS_UNROLL
    for (unsigned i = 0; i < 64; i += 16) {
      const auto part = static_cast<__mmask16>(mask >> i);
      const __m512i x = widened(symbols + i);
      const __m512i chosen = _mm512_mask_compress_epi32(x, part, x);
      _mm_storeu_si128(reinterpret_cast<__m128i*>(next), _mm512_cvtepi32_epi8(chosen));
      next += popcount(part);
    }
  }
};

}  // namespace

void avx512_tile_order(const uint16_t* scales, size_t n, TileOrder& order) {
  // How many items each class has had so far: a word for each class, which holds 12288.
  uint64_t sums = 0;
  for (size_t i = 0; i < n; i += 64) {
    // class = S >> 2 & 3
    const __m512i a = load(scales + i), b = load(scales + i + 32);
    const auto bit = [&](unsigned v) {
      return uint64_t{_mm512_test_epi16_mask(b, words_of(v))} << 32 |
             _mm512_test_epi16_mask(a, words_of(v));
    };
    const uint64_t low = bit(4), high = bit(8);
    const uint64_t masks[kTileClasses] = {~(low | high), low & ~high, high & ~low, low & high};
    std::memcpy(order.first[i / 64], &sums, sizeof sums);
    BF16CODECS_UNROLL
    for (unsigned c = 0; c < kTileClasses; ++c) {
      order.mask[i / 64][c] = masks[c];
      sums += popcount64(masks[c]) << 16 * c;
    }
  }
  uint64_t begins = 0;
  order.begin[0] = 0;
  for (unsigned c = 0; c < kTileClasses; ++c) {
    order.begin[c + 1] = order.begin[c] + (sums >> 16 * c & 0xFFFF);
    begins |= uint64_t{order.begin[c]} << 16 * c;
  }
  // Eight records at a time: the indices are an array of whole registers, with noise past the
  // records.
  const __m512i all = _mm512_set1_epi64(static_cast<int64_t>(begins));
  for (size_t i = 0; i < n / 64; i += 8) {
    store(order.first[i], _mm512_add_epi16(load(order.first[i]), all));
  }
}

void avx512_tile_decode(TileDecoder& d, const TileTable tables[], const uint8_t* classes,
                        size_t steps, uint8_t* symbols) {
  with_groups(d.groups,
              [&](auto groups) { decode_steps<groups()>(d, tables, classes, steps, symbols); });
}

void avx512_tile_encode(TileEncoder& e, const TileCodeTable tables[], const uint8_t* classes,
                        size_t steps, const uint8_t* symbols) {
  with_groups(e.groups,
              [&](auto groups) { encode_steps<groups()>(e, tables, classes, steps, symbols); });
}

const TileKernels kAvx512TileKernels = {
    .order = avx512_tile_order,
    .decode = avx512_tile_decode,
    .prepare = nullptr,
    .restore = restore<Classes>,
    .decode_restore = nullptr,
    .arrange = arrange<Classes>,
    .encode = avx512_tile_encode,
    .prepare_code = cut_pieces,
};

}  // namespace bf16codecs
