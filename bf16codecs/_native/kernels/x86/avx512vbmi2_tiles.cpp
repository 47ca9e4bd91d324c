// The tiles mode's kernels for AVX-512 with VBMI and VBMI2 (docs/format_tiles.md, "Table classes"
// and "Tiles").
//
// VBMI2 expands and compresses bytes and words, and shifts words of two registers as if they were
// one. So the states of a group are not 32-bit numbers here but **planes**: the low and the high
// words of its 32 lanes in two registers, lane l at word l. A step is then one register of
// everything, where avx512_tiles.cpp has two, and products of 32 bits are made of 16-bit ones.
//
//   decode   look-ups by x.low; x = f (x >> 12) + r in words; shift both planes right by n; expand
//            the words of the lanes that need one into x.low. Words are in the order of the lanes,
//            and a permute of bytes brings symbols from there to their places.
//   encode   in phases, for all groups in turns: entries, words out, division, slots
//
// Expansions and compressions merge into live registers: with zeroing, this took decoding from 16
// to 11.8 GB/s, as Zen 5 then waits for the destination's old value (docs/experiments.md, "Tiles").

#include "kernels/x86/avx512_tiles.h"

#include "kernels/groups.h"
#include "kernels/tiles_tables.h"
#include "kernels/x86/avx512vbmi2_planes.h"

namespace bf16codecs {
namespace {

struct Classes {
  static BF16CODECS_INLINE __m512i join(const uint64_t mask[kTileClasses],
                                        const uint8_t* next[kTileClasses]) {
    __m512i symbols = load(next[0]);  // anything: each place is in one mask
    BF16CODECS_UNROLL
    for (unsigned c = 0; c < kTileClasses; ++c) {
      symbols = _mm512_mask_expand_epi8(symbols, mask[c], load_early(next[c]));
      next[c] += popcount64(mask[c]);
    }
    return symbols;
  }

  static BF16CODECS_INLINE void append(uint64_t mask, const uint8_t* symbols, uint8_t*& next) {
    const __m512i x = load(symbols);
    store(next, _mm512_mask_compress_epi8(x, mask, x));
    next += popcount64(mask);
  }
};

// Decodes 32 symbols, to words in the order of the lanes. Only the low 5 bits of an index count.
//
// The chain from state to state is kept short, at the price of more instructions: f and the symbols
// of a bucket's own entry and of its alias are looked up while the comparison is made that chooses
// between them, instead of one after the other as in avx512_tiles.cpp.
BF16CODECS_INLINE __m512i decode_group(Planes& x, const TileTable& t, const uint8_t*& words) {
  // p = x >> 5 & 127;  is_primary = p < threshold[b] ? -1 : 0. The difference is -128 ... 127, and
  // its sign is spread over the word; a comparison to a mask register takes longer.
  const __m512i p = _mm512_and_si512(_mm512_srli_epi16(x.low, 5), words_of(127));
  const __m512i threshold = _mm512_permutexvar_epi16(x.low, load(t.threshold));
  const __m512i is_primary = _mm512_srai_epi16(_mm512_sub_epi16(p, threshold), 15);
  const auto look_up = [&](const uint16_t table[2][kTileEntries]) {
    return _mm512_ternarylogic_epi32(is_primary, _mm512_permutexvar_epi16(x.low, load(table[0])),
                                     _mm512_permutexvar_epi16(x.low, load(table[1])), 0xCA);
  };
  const __m512i f = look_up(t.bucket_frequency), symbols = look_up(t.bucket_symbols);
  // r = is_primary ? p : p + shift[b]. The sum is below 4096; a saturating addition keeps compilers
  // from changing the order of the additions that follow.
  const __m512i shift = _mm512_permutexvar_epi16(x.low, load(t.shift));
  const __m512i r = _mm512_adds_epu16(p, _mm512_andnot_si512(is_primary, shift));

  // x = f (x >> 12) + r, of words, with 16 f from the table:
  //   f (x >> 12) = 16 f x.high + f (x.low >> 12)
  // The second product is the high word of 16 f (x.low & 0xF000), at most 15 x 4095; with r < f it
  // fits in a word, `more`. The low word of the sum has overflowed if it is below `more`, and then
  // carries 1.
  const __m512i top = _mm512_and_si512(x.low, words_of(0xF000));
  const __m512i more = _mm512_add_epi16(_mm512_mulhi_epu16(f, top), r);
  const __m512i low = _mm512_add_epi16(_mm512_mullo_epi16(f, x.high), more);
  const __m512i carry = _mm512_min_epu16(_mm512_subs_epu16(more, low), words_of(1));
  const __m512i high = _mm512_add_epi16(_mm512_mulhi_epu16(f, x.high), carry);

  // symbol = base | x & (2^n - 1);  x >>= n;  if (x < 2^16) x = x << 16 | next word. Shifts take
  // the low 4 bits of a count, which in base << 8 | n are n. rest = 2^n - 1, and x >> n is below
  // 2^16 if x.high has no bit above those. The new high word then is the low one, whose place the
  // next word takes.
  const __m512i rest = _mm512_shldv_epi16(_mm512_setzero_si512(), words_of(0xFFFF), symbols);
  const __m512i decoded = _mm512_ternarylogic_epi32(low, rest, _mm512_srli_epi16(symbols, 8), 0xEA);
  const __mmask32 is_low = _mm512_cmple_epu16_mask(high, rest);
  x.low = _mm512_shrdv_epi16(low, high, symbols);
  x.high = _mm512_shrdv_epi16(high, _mm512_setzero_si512(), symbols);
  x.high = _mm512_mask_mov_epi16(x.high, is_low, x.low);
  x.low = _mm512_mask_expand_epi16(x.low, is_low, load_early(words));
  words += 2 * popcount(is_low);
  return decoded;
}

// The permutation of the low bytes of the words of two groups from the order of the lanes to that
// of the symbols. Symbol 2 i is word i of its group, at byte 2 i; symbol 2 i + 1 is word 16 + i, at
// byte 2 i + 32.
BF16CODECS_INLINE __m512i symbol_order() {
  alignas(64) static constexpr uint8_t kOrder[64] = {
      0,  32,  2,  34,  4,  36,  6,  38,  8,  40,  10, 42,  12, 44,  14, 46,
      16, 48,  18, 50,  20, 52,  22, 54,  24, 56,  26, 58,  28, 60,  30, 62,
      64, 96,  66, 98,  68, 100, 70, 102, 72, 104, 74, 106, 76, 108, 78, 110,
      80, 112, 82, 114, 84, 116, 86, 118, 88, 120, 90, 122, 92, 124, 94, 126};
  return load(kOrder);
}

// Decodes steps. Symbols of two groups are stored at once, and `between` is called after each two.
template <unsigned kGroups, typename Between>
BF16CODECS_INLINE void decode_steps(TileDecoder& d, const TileTable tables[],
                                    const uint8_t* classes, size_t steps, uint8_t* symbols,
                                    Between&& between) {
  Planes x[kGroups];
  for (unsigned g = 0; g < kGroups; ++g) x[g] = load_planes(d.x + 32 * g);
  const uint8_t* words = d.words;
  const uint8_t* const end = classes + steps;
  for (; classes < end; classes += kGroups, symbols += kStepItems * kGroups) {
    __m512i decoded[kGroups];
    BF16CODECS_UNROLL
    for (unsigned g = 0; g < kGroups; ++g) {
      decoded[g] = decode_group(x[g], tables[classes[g]], words);
      if (g % 2 == 1) {
        store(symbols + kStepItems * (g - 1),
              _mm512_permutex2var_epi8(decoded[g - 1], symbol_order(), decoded[g]));
        between();
      }
    }
    if constexpr (kGroups == 1) {
      const __m512i ordered = _mm512_permutexvar_epi8(symbol_order(), decoded[0]);
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(symbols), _mm512_castsi512_si256(ordered));
    }
  }
  for (unsigned g = 0; g < kGroups; ++g) store_planes(d.x + 32 * g, x[g]);
  d.words = words;
}

template <unsigned kGroups>
void decode_alone(TileDecoder& d, const TileTable tables[], const uint8_t* classes, size_t steps,
                  uint8_t* symbols) {
  decode_steps<kGroups>(d, tables, classes, steps, symbols, [] {});
}

void decode(TileDecoder& d, const TileTable tables[], const uint8_t* classes, size_t steps,
            uint8_t* symbols) {
  with_groups(d.groups,
              [&](auto groups) { decode_alone<groups()>(d, tables, classes, steps, symbols); });
}

// Decodes a tile while the one before it is restored: after each two steps, which are 64 items, a
// record. Decoding two groups waits most of the time for the chain from state to state, and
// restoring fills that time; four groups leave too little of it.
template <unsigned kClasses, unsigned kRawBits, bool kToItems>
void decode_restore_as(TileDecoder& d, const TileTable tables[], const uint8_t* classes,
                       size_t steps, uint8_t* symbols, const TileShape& shape,
                       const TileItems& before, TileEscapes& escapes) {
  Restorer<Classes, kClasses, kRawBits, kToItems> restore_next(shape, before, escapes);
  const size_t records = before.n / kRecordItems;
  const size_t both = steps / 2 < records ? steps / 2 : records;
  decode_steps<2>(d, tables, classes, 2 * both, symbols, restore_next);
  decode_alone<2>(d, tables, classes + 2 * both, steps - 2 * both, symbols + kRecordItems * both);
  for (size_t i = both; i < records; ++i) restore_next();
}

template <unsigned kClasses>
BF16CODECS_INLINE auto choose_decode_restore(const TileShape& shape) {
  if (shape.raw_bits == 5) {
    return shape.to_items ? decode_restore_as<kClasses, 5, true>
                          : decode_restore_as<kClasses, 5, false>;
  }
  return shape.raw_bits == 8 && shape.to_items ? decode_restore_as<kClasses, 8, true> : nullptr;
}

void decode_restore(TileDecoder& d, const TileTable tables[], const uint8_t* classes, size_t steps,
                    uint8_t* symbols, const TileShape& shape, const TileItems& before,
                    TileEscapes& escapes) {
  const auto kernel = shape.classes == 1 ? choose_decode_restore<1>(shape)
                                         : choose_decode_restore<kTileClasses>(shape);
  if (d.groups == 2 && kernel != nullptr) {
    return kernel(d, tables, classes, steps, symbols, shape, before, escapes);
  }
  restore<Classes>(shape, before, escapes);
  decode(d, tables, classes, steps, symbols);
}

// Loads 32 symbols in the order of the lanes, each in both bytes of a word.
BF16CODECS_INLINE __m512i load_lanes(const uint8_t* symbols) {
  alignas(64) static constexpr uint8_t kOrder[64] = {
      0,  0,  2,  2,  4,  4,  6,  6,  8,  8,  10, 10, 12, 12, 14, 14,  //
      16, 16, 18, 18, 20, 20, 22, 22, 24, 24, 26, 26, 28, 28, 30, 30,  //
      1,  1,  3,  3,  5,  5,  7,  7,  9,  9,  11, 11, 13, 13, 15, 15,  //
      17, 17, 19, 19, 21, 21, 23, 23, 25, 25, 27, 27, 29, 29, 31, 31};
  return _mm512_permutexvar_epi8(load(kOrder), load(symbols));
}

// The entries of the symbols, in both bytes of words. A permute of two registers takes the low 7
// bits of an index, and bit 7 chooses between two such permutes.
BF16CODECS_INLINE __m512i find_entries(const uint8_t entry_of[256], __m512i symbols) {
  return _mm512_mask_blend_epi8(
      _mm512_movepi8_mask(symbols),
      _mm512_permutex2var_epi8(load(entry_of), symbols, load(entry_of + 64)),
      _mm512_permutex2var_epi8(load(entry_of + 128), symbols, load(entry_of + 192)));
}

// if (x >> (20 - n) >= f) emit x, x >>= 16, from the last lane to the first.
BF16CODECS_INLINE void emit(Planes& x, __m512i f, __m512i n, uint8_t*& words) {
  // x >> 16 >= (f << 4) >> n is the same, as f << 4 is a multiple of 2^n: f is even where n = 5. It
  // is below 2^16, as f is below 4096.
  const __m512i limit = _mm512_srlv_epi16(_mm512_slli_epi16(f, 4), n);
  const __mmask32 full = _mm512_cmpge_epu16_mask(x.high, limit);
  const unsigned count = popcount(full);
  words -= 2 * count;
  _mm512_mask_storeu_epi16(words, static_cast<__mmask32>((uint64_t{1} << count) - 1),
                           _mm512_mask_compress_epi16(x.low, full, x.low));
  x.low = _mm512_mask_mov_epi16(x.low, full, x.high);
  x.high = _mm512_mask_mov_epi16(x.high, full, _mm512_setzero_si512());
}

// 4096 (x / f) in planes, with noise in the low 12 bits; the quotient may be one too small (see
// divide() in avx512_tiles.cpp). Unpacking low and high words makes 32-bit states of half of the
// lanes each.
BF16CODECS_INLINE Planes divide(const Planes& x, const float reciprocal[kTileEntries],
                                __m512i entries) {
  const auto quotients = [&](__m512i v, __m512i of) {
    const __m512 factor =
        _mm512_permutex2var_ps(_mm512_loadu_ps(reciprocal), of, _mm512_loadu_ps(reciprocal + 16));
    return _mm512_cvttps_epu32(_mm512_mul_ps(_mm512_cvtepu32_ps(v), factor));
  };
  const __m512i a =
      quotients(_mm512_unpacklo_epi16(x.low, x.high), _mm512_unpacklo_epi16(entries, entries));
  const __m512i b =
      quotients(_mm512_unpackhi_epi16(x.low, x.high), _mm512_unpackhi_epi16(entries, entries));
  // Unpacking works within 128 bits: a has lanes 0-3, 8-11, 16-19 and 24-27, b the others. These
  // permutes take the low and the high words of both in the order of the lanes.
  alignas(64) static constexpr uint16_t kLow[32] = {0,  2,  4,  6,  32, 34, 36, 38, 8,  10, 12,
                                                    14, 40, 42, 44, 46, 16, 18, 20, 22, 48, 50,
                                                    52, 54, 24, 26, 28, 30, 56, 58, 60, 62};
  alignas(64) static constexpr uint16_t kHigh[32] = {1,  3,  5,  7,  33, 35, 37, 39, 9,  11, 13,
                                                     15, 41, 43, 45, 47, 17, 19, 21, 23, 49, 51,
                                                     53, 55, 25, 27, 29, 31, 57, 59, 61, 63};
  return {_mm512_permutex2var_epi16(a, load(kLow), b),
          _mm512_permutex2var_epi16(a, load(kHigh), b)};
}

// The state of a step between its phases. r is the remainder by the estimated quotient, below 2 f,
// and less = r - f modulo 2^16: the smaller one as an unsigned word is the remainder.
struct Step {
  const TileCodeTable* table;
  __m512i symbols, entries, f, n, r, less, position, from, piece;
  Planes quotients;
};

BF16CODECS_INLINE void prepare(const TileCodeTable& t, const uint8_t* symbols, Step& step) {
  step.table = &t;
  step.symbols = load_lanes(symbols);
  step.entries = find_entries(t.entry_of, step.symbols);
  const __m512i coder = _mm512_permutexvar_epi16(step.entries, load(t.coder));
  step.f = _mm512_and_si512(coder, words_of(0x1FFF));
  step.n = _mm512_srli_epi16(coder, 13);
}

// x = x << n | symbol & (2^n - 1);  q = x / f, r = x % f. Remainders are below 2^13, so that the
// low 16 bits of q and of the product are enough for them.
BF16CODECS_INLINE void divide(Planes& x, Step& step) {
  const __m512i rest = _mm512_shldv_epi16(_mm512_setzero_si512(), words_of(0xFFFF), step.n);
  x.high = _mm512_shldv_epi16(x.high, x.low, step.n);
  x.low = _mm512_ternarylogic_epi32(_mm512_sllv_epi16(x.low, step.n), rest, step.symbols, 0xF8);
  step.quotients = divide(x, step.table->reciprocal, step.entries);
  const __m512i q = _mm512_shldi_epi16(step.quotients.high, step.quotients.low, 4);
  const __m512i product = _mm512_mullo_epi16(q, step.f);
  step.r = _mm512_sub_epi16(x.low, product);
  step.less = _mm512_sub_epi16(_mm512_sub_epi16(x.low, step.f), product);
}

// P = first[entry] + r;  k = max(pieces[entry], piece_at[P / 32])
BF16CODECS_INLINE void find_position(Step& step) {
  const TileCodeTable& t = *step.table;
  const __m512i r = _mm512_min_epu16(step.r, step.less);
  step.position = _mm512_add_epi16(r, _mm512_permutexvar_epi16(step.entries, load(t.first)));
  const __m512i at = _mm512_permutex2var_epi8(load(t.piece_at), _mm512_srli_epi16(step.position, 5),
                                              load(t.piece_at + 64));
  step.from = _mm512_max_epu8(at, _mm512_permutexvar_epi16(step.entries, load(t.pieces)));
  step.piece = step.from;
}

// if (P > last[k]) ++k, for the i-th time; see find_slots() in avx512_tiles.cpp
BF16CODECS_INLINE void advance(Step& step, unsigned i) {
  const uint16_t* const table = step.table->last + i;
  const __m512i last =
      _mm512_permutex2var_epi16(load(table), step.from, load(table + kTileEntries));
  const __m512i past = _mm512_subs_epu16(step.position, last);
  step.piece = _mm512_add_epi16(step.piece, _mm512_min_epu16(past, words_of(1)));
}

// x = q << 12 | slot,  slot = 32 P + slot_offset[k]. Where r >= f the quotient is one larger:
// 0x1000 is added to the low word, and if that overflows, which leaves 0 in its upper four bits, 1
// to the high word.
BF16CODECS_INLINE Planes join(const Step& step) {
  const uint16_t* const offset = step.table->slot_offset;
  const __mmask32 short_by_1 = _mm512_cmpge_epu16_mask(step.r, step.f);
  __m512i top = _mm512_and_si512(step.quotients.low, words_of(0xF000));
  top = _mm512_mask_add_epi16(top, short_by_1, top, words_of(0x1000));
  const __mmask32 carry = _mm512_mask_testn_epi16_mask(short_by_1, top, top);
  const __m512i high = step.quotients.high;
  const __m512i rest =
      _mm512_permutex2var_epi16(load(offset), step.piece, load(offset + kTileEntries));
  top = _mm512_add_epi16(top, _mm512_slli_epi16(step.position, 5));
  return {_mm512_add_epi16(top, rest), _mm512_mask_add_epi16(high, carry, high, words_of(1))};
}

// Encodes a step of each group, phase by phase in turns: a processor does not look far enough ahead
// to begin with one step before the other ends. Words are emitted from the last group to the first.
template <unsigned kGroups>
BF16CODECS_INLINE void encode_groups(const TileCodeTable tables[], const uint8_t* classes,
                                     const uint8_t* symbols, Planes x[kGroups], uint8_t*& words) {
  Step step[kGroups];
  unsigned most = 0;
  BF16CODECS_UNROLL
  for (unsigned g = 0; g < kGroups; ++g) {
    const TileCodeTable& t = tables[classes[g]];
    prepare(t, symbols + kStepItems * g, step[g]);
    most = t.steps > most ? t.steps : most;
  }
  BF16CODECS_UNROLL
  for (unsigned i = 0; i < kGroups; ++i) {
    const unsigned g = kGroups - 1 - i;
    emit(x[g], step[g].f, step[g].n, words);
  }
  BF16CODECS_UNROLL
  for (unsigned g = 0; g < kGroups; ++g) divide(x[g], step[g]);
  BF16CODECS_UNROLL
  for (unsigned g = 0; g < kGroups; ++g) find_position(step[g]);
  for (unsigned i = 0; i < most; ++i) {
    BF16CODECS_UNROLL
    for (unsigned g = 0; g < kGroups; ++g) advance(step[g], i);
  }
  BF16CODECS_UNROLL
  for (unsigned g = 0; g < kGroups; ++g) x[g] = join(step[g]);
}

template <unsigned kGroups>
void encode_steps(TileEncoder& e, const TileCodeTable tables[], const uint8_t* classes,
                  size_t steps, const uint8_t* symbols) {
  Planes x[kGroups];
  for (unsigned g = 0; g < kGroups; ++g) x[g] = load_planes(e.x + 32 * g);
  uint8_t* words = e.words;
  while (steps != 0) {
    steps -= kGroups;
    encode_groups<kGroups>(tables, classes + steps, symbols + kStepItems * steps, x, words);
  }
  for (unsigned g = 0; g < kGroups; ++g) store_planes(e.x + 32 * g, x[g]);
  e.words = words;
}

void encode(TileEncoder& e, const TileCodeTable tables[], const uint8_t* classes, size_t steps,
            const uint8_t* symbols) {
  with_groups(e.groups,
              [&](auto groups) { encode_steps<groups()>(e, tables, classes, steps, symbols); });
}

}  // namespace

const TileKernels kAvx512Vbmi2TileKernels = {
    .order = avx512_tile_order,
    .decode = decode,
    .prepare = spread_buckets,
    .restore = restore<Classes>,
    .decode_restore = decode_restore,
    .arrange = arrange<Classes>,
    .encode = encode,
    .prepare_code = cut_pieces,
};

}  // namespace bf16codecs
