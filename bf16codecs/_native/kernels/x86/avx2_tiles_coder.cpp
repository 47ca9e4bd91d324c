// The tiles mode's rANS coder for AVX2 (docs/format_tiles.md, "Table classes" and "Tiles").
//
// A step's 32 lanes are looked up at once, as bytes: a table of 32 words becomes four rows of 16
// bytes, for the low and the high bytes of its first and of its last 16 entries, and a look-up of
// words is four byte shuffles. So a step takes 25 ns; with gathers it takes 34
// (docs/experiments.md, "Tiles").
//
// Registers hold 32 lanes in three forms:
//
//   states   four registers of eight 32-bit lanes: see x86/avx2_lanes.h
//   Words    two registers of words in the order of the symbols, 0-15 and 16-31
//   bytes    one register, in the order that packing Words leaves, as packs and unpacks work within
//            128 bits: symbols 0-7, 16-23, 8-15, 24-31
//
// Packing and unpacking between bytes and Words cost one instruction each that way; the order is
// only undone, by a permute of 64-bit quarters, where symbols are stored or loaded.
//
// Each group of vector instructions is preceded by the scalar formula that it computes.

#include "kernels/tiles_decode.h"
#include "kernels/x86/avx2_lanes.h"
#include "kernels/x86/avx2_tiles.h"

namespace bf16codecs {
namespace {

// A byte for each of 32 entries: those of the first 16 in both halves of one register, those of the
// others in both halves of the other.
struct Row {
  __m256i low, high;
};

// Makes a row of 32 bytes.
BF16CODECS_INLINE Row make_row(__m256i bytes) {
  return {_mm256_permute2x128_si256(bytes, bytes, 0x00),
          _mm256_permute2x128_si256(bytes, bytes, 0x11)};
}

// A word for each of 32 entries.
struct WordRow {
  Row low, high;
};

// Parts 32 words into rows of their low and of their high bytes.
BF16CODECS_INLINE WordRow make_word_row(__m256i first16, __m256i last16) {
  const __m256i byte = _mm256_set1_epi16(255);
  return {make_row(pack(_mm256_and_si256(first16, byte), _mm256_and_si256(last16, byte))),
          make_row(pack(_mm256_srli_epi16(first16, 8), _mm256_srli_epi16(last16, 8)))};
}

BF16CODECS_INLINE WordRow make_word_row(const uint16_t words[kTileEntries]) {
  return make_word_row(load(words), load(words + 16));
}

// Indices 0 ... 31 for look-ups in the two registers of a row. A shuffle gives 0 for an index with
// bit 7 set: adding 0x70 sets it from 16 on, subtracting 16 below 16, and neither changes the low 4
// bits. So the look-up is the or of two shuffles.
struct Index {
  __m256i low, high;

  BF16CODECS_INLINE explicit Index(__m256i entries)
      : low(_mm256_add_epi8(entries, _mm256_set1_epi8(0x70))),
        high(_mm256_sub_epi8(entries, _mm256_set1_epi8(16))) {}
};

BF16CODECS_INLINE __m256i look_up(const Row& row, const Index& index) {
  return _mm256_or_si256(_mm256_shuffle_epi8(row.low, index.low),
                         _mm256_shuffle_epi8(row.high, index.high));
}

// 32 words. In the bytes that stand for them, word i + 8 j of words[k] is byte i + 8 k + 16 j, i <
// 8: the order of packus.
struct Words {
  __m256i v[2];

  BF16CODECS_INLINE __m256i operator[](unsigned k) const { return v[k]; }
};

// Packs words below 256 to bytes in the order above.
BF16CODECS_INLINE __m256i to_bytes(const Words& words) {
  return _mm256_packus_epi16(words[0], words[1]);
}

// Makes words of their low and high bytes.
BF16CODECS_INLINE Words zip(__m256i low, __m256i high) {
  return {{_mm256_unpacklo_epi8(low, high), _mm256_unpackhi_epi8(low, high)}};
}

BF16CODECS_INLINE Words look_up(const WordRow& row, const Index& index) {
  return zip(look_up(row.low, index), look_up(row.high, index));
}

BF16CODECS_INLINE Words both_and(const Words& words, int mask) {
  const __m256i m = _mm256_set1_epi16(static_cast<short>(mask));
  return {{_mm256_and_si256(words[0], m), _mm256_and_si256(words[1], m)}};
}

// 2^n - 1 for bytes n.
BF16CODECS_INLINE __m256i interval_masks(__m256i n) {
  const __m256i masks = _mm256_setr_epi8(0, 1, 3, 7, 15, 31, 63, 127, 0, 0, 0, 0, 0, 0, 0, 0,  //
                                         0, 1, 3, 7, 15, 31, 63, 127, 0, 0, 0, 0, 0, 0, 0, 0);
  return _mm256_shuffle_epi8(masks, n);
}

// f and n of eight lanes, extended to 32 bits.
struct Coder {
  __m256i f, n;
};

// Part words n << 13 | f: those of the even lanes are in the low halves of dwords, those of the odd
// lanes in the high halves.
BF16CODECS_INLINE Coder even_coder(__m256i words) {
  return {_mm256_and_si256(words, _mm256_set1_epi32(0x1FFF)),
          _mm256_srli_epi32(_mm256_slli_epi32(words, 16), 29)};
}

BF16CODECS_INLINE Coder odd_coder(__m256i words) {
  return {_mm256_and_si256(odd_lanes(words), _mm256_set1_epi32(0x1FFF)),
          _mm256_srli_epi32(words, 29)};
}

// --- decoding ------------------------------------------------------------------------------------

struct DecodingRows {
  Row last_own;  // threshold - 1
  Row alias, base, mask;
  WordRow shift, coder;

  BF16CODECS_INLINE explicit DecodingRows(const TileTable& table)
      : shift(make_word_row(table.shift)), coder(make_word_row(table.coder)) {
    const WordRow buckets = make_word_row(table.alias), symbols = make_word_row(table.symbols);
    const __m256i one = _mm256_set1_epi8(1);
    last_own = {_mm256_sub_epi8(buckets.high.low, one), _mm256_sub_epi8(buckets.high.high, one)};
    alias = buckets.low;
    mask = symbols.high, base = symbols.low;
  }
};

// The entries and ranks of 32 slots.
struct Slots {
  __m256i entries;  // bytes
  Words ranks;
};

BF16CODECS_INLINE Slots look_up_slots(const DecodingRows& t, const Words& slots) {
  // b = x mod 32,  p = x div 32 mod 128
  const __m256i b = to_bytes(both_and(slots, 31));
  const Words p = both_and({{_mm256_srli_epi16(slots[0], 5), _mm256_srli_epi16(slots[1], 5)}}, 127);
  // lent = p >= threshold[b], as p > threshold[b] - 1: AVX2 compares signed bytes, which hold 0 ...
  // 127 and -1 ... 127
  const Index bucket(b);
  const __m256i lent = _mm256_cmpgt_epi8(to_bytes(p), look_up(t.last_own, bucket));
  // entry = lent ? alias[b] : b,  rank = p + (lent ? shift[b] : 0)
  const Words shift = zip(_mm256_and_si256(lent, look_up(t.shift.low, bucket)),
                          _mm256_and_si256(lent, look_up(t.shift.high, bucket)));
  return {_mm256_blendv_epi8(b, look_up(t.alias, bucket), lent),
          {{_mm256_add_epi16(p[0], shift[0]), _mm256_add_epi16(p[1], shift[1])}}};
}

// x = f (x div 4096) + r, below 2^32; see the ranges in tiles.cpp
BF16CODECS_INLINE __m256i advance(__m256i x, __m256i f, __m256i r) {
  return _mm256_add_epi32(_mm256_mullo_epi32(_mm256_srli_epi32(x, 12), f), r);
}

// Decodes a step: 32 slots are looked up together, and the states advance in four registers.
BF16CODECS_INLINE void decode_step(const DecodingRows& t, Avx2Group& group, const uint8_t*& words,
                                   uint8_t* symbols) {
  __m256i* const x = group.x;
  const Slots at = look_up_slots(t, {{lower_halves(x[0], x[2]), lower_halves(x[1], x[3])}});
  const Index entry(at.entries);
  const Words coder = look_up(t.coder, entry);
  Words low;
  BF16CODECS_UNROLL
  for (unsigned i = 0; i < 2; ++i) {
    const Coder even = even_coder(coder[i]), odd = odd_coder(coder[i]);
    const __m256i v = advance(x[i], even.f, even_lanes(at.ranks[i]));
    const __m256i w = advance(x[2 + i], odd.f, odd_lanes(at.ranks[i]));
    low.v[i] = lower_halves(v, w);
    // x = x div 2^n
    x[i] = _mm256_srlv_epi32(v, even.n), x[2 + i] = _mm256_srlv_epi32(w, odd.n);
  }
  // symbol = base + x mod 2^n, with the x before its bits were shifted out. base is a multiple of
  // 2^n, and n at most 5, so that bytes and an or will do.
  const __m256i rest = _mm256_and_si256(to_bytes(both_and(low, 255)), look_up(t.mask, entry));
  const __m256i packed = _mm256_or_si256(look_up(t.base, entry), rest);
  store(symbols, _mm256_permute4x64_epi64(packed, 0xD8));
  group.renormalize(words);
}

// --- encoding ------------------------------------------------------------------------------------

struct EncodingRows {
  const TileCodeTable* table;
  WordRow coder, first;
  // The entries of 16 symbols a register, each xor the escape's, from first_symbol on. Rows in
  // which no symbol has an entry are left out.
  unsigned first_symbol, symbol_rows;
  __m256i entry_of[256 / 16];
};

// Makes the rows of a table, when a block's first step of its class comes.
BF16CODECS_COLD void make_encoding_rows(const TileCodeTable& table, EncodingRows& rows) {
  rows.table = &table;
  rows.coder = make_word_row(table.coder);
  rows.first = make_word_row(table.first);
  rows.symbol_rows = 0;
  const __m256i escape = _mm256_set1_epi8(kTileEntries - 1);
  for (unsigned symbol = 0; symbol < 256; symbol += 16) {
    const __m256i part = _mm256_broadcastsi128_si256(load16(table.entry_of + symbol));
    const __m256i entries = _mm256_xor_si256(part, escape);
    if (_mm256_testz_si256(entries, entries)) continue;
    // Intervals leave no gaps, so that the rows that are kept are neighbours.
    if (rows.symbol_rows == 0) rows.first_symbol = symbol;
    rows.entry_of[rows.symbol_rows++] = entries;
  }
}

// The entries of 32 symbols. In round r, `index` is symbol - first_symbol - 16 r modulo 256: below
// 16 in one round at most. In all others, bit 7 of in_row makes the shuffle give 0, which leaves
// the escape's entry as it is.
BF16CODECS_INLINE __m256i find_entries(const EncodingRows& t, __m256i symbols) {
  const __m256i row = _mm256_set1_epi8(16);
  __m256i entries = _mm256_set1_epi8(kTileEntries - 1);
  __m256i index = _mm256_sub_epi8(symbols, _mm256_set1_epi8(static_cast<char>(t.first_symbol)));
  for (unsigned r = 0; r < t.symbol_rows; ++r) {
    const __m256i in_row = _mm256_adds_epu8(index, _mm256_set1_epi8(0x70));
    entries = _mm256_xor_si256(entries, _mm256_shuffle_epi8(t.entry_of[r], in_row));
    index = _mm256_sub_epi8(index, row);
  }
  return entries;
}

// Four words of a table at four indices. Scalar loads are faster than a gather instruction.
BF16CODECS_INLINE uint64_t gather4(const uint16_t table[], uint64_t indices) {
  const uint64_t low = table[indices & 0xFFFF] | uint64_t{table[indices >> 16 & 0xFFFF]} << 16;
  const uint64_t high = table[indices >> 32 & 0xFFFF] | uint64_t{table[indices >> 48]} << 16;
  return low | high << 32;
}

BF16CODECS_INLINE __m128i gather8(const uint16_t table[], __m128i indices) {
  const auto low = static_cast<uint64_t>(_mm_cvtsi128_si64(indices));
  const auto high = static_cast<uint64_t>(_mm_extract_epi64(indices, 1));
  return _mm_set_epi64x(static_cast<int64_t>(gather4(table, high)),
                        static_cast<int64_t>(gather4(table, low)));
}

BF16CODECS_INLINE __m256i gather(const uint16_t table[], __m256i indices) {
  return _mm256_set_m128i(gather8(table, _mm256_extracti128_si256(indices, 1)),
                          gather8(table, _mm256_castsi256_si128(indices)));
}

// The state of a step between its phases: what its symbols and table say, and its quotients.
// coder[i] and divided[i] belong to the states x[i].
struct Step {
  const uint16_t* slots;
  Words first, rest;  // rest = symbol - base
  Coder coder[4];
  Divided divided[4];
};

// The first phase of a step: looks up the entries of its symbols and all that belongs to them.
BF16CODECS_INLINE void prepare(const EncodingRows& t, const uint8_t* symbols, Step& step) {
  const __m256i packed = _mm256_permute4x64_epi64(load(symbols), 0xD8);
  const Index entry(find_entries(t, packed));
  const __m256i low = look_up(t.coder.low, entry), high = look_up(t.coder.high, entry);
  const __m256i n = _mm256_and_si256(_mm256_srli_epi16(high, 5), _mm256_set1_epi8(7));
  const Words coder = zip(low, high);
  BF16CODECS_UNROLL
  for (unsigned i = 0; i < 2; ++i) {
    step.coder[i] = even_coder(coder[i]), step.coder[2 + i] = odd_coder(coder[i]);
  }
  step.slots = t.table->slot;
  step.first = look_up(t.first, entry);
  step.rest = zip(_mm256_and_si256(packed, interval_masks(n)), _mm256_setzero_si256());
}

// if (x div 2^(20 - n) >= f) emit a word, from the last lane to the first. 20 - n is at least 15,
// so that the shifted state is below 2^17, and a signed comparison will do.
BF16CODECS_INLINE void make_room(const Step& step, __m256i x[4], uint8_t*& words) {
  BF16CODECS_UNROLL
  for (unsigned turn = 0; turn < 4; ++turn) {
    const unsigned i = 3 - turn;
    const __m256i shift = _mm256_sub_epi32(_mm256_set1_epi32(20), step.coder[i].n);
    const __m256i keep = _mm256_cmpgt_epi32(step.coder[i].f, _mm256_srlv_epi32(x[i], shift));
    emit(x[i], keep, words);
  }
}

// Divides 2^n x + symbol - base, which is below f 2^20, by f.
BF16CODECS_INLINE void divide(Step& step, const __m256i x[4]) {
  BF16CODECS_UNROLL
  for (unsigned i = 0; i < 4; ++i) {
    const __m256i words = step.rest[i % 2];
    const __m256i rest = i < 2 ? even_lanes(words) : odd_lanes(words);
    const __m256i shifted = _mm256_sllv_epi32(x[i], step.coder[i].n);
    step.divided[i] = divide_lanes(_mm256_or_si256(shifted, rest), step.coder[i].f);
  }
}

// x = 4096 q + slot[first + r]
BF16CODECS_INLINE void join(const Step& step, __m256i x[4]) {
  BF16CODECS_UNROLL
  for (unsigned i = 0; i < 2; ++i) {
    const Divided &v = step.divided[i], &w = step.divided[2 + i];
    const __m256i rank = lower_halves(v.r, w.r);
    const __m256i slot = gather(step.slots, _mm256_add_epi16(step.first[i], rank));
    x[i] = _mm256_or_si256(_mm256_slli_epi32(v.q, 12), even_lanes(slot));
    x[2 + i] = _mm256_or_si256(_mm256_slli_epi32(w.q, 12), odd_lanes(slot));
  }
}

// Encodes a step of each of kSteps groups, phase by phase in turns: a processor does not look far
// enough ahead to begin with one step before the other ends. Words are emitted from the last group
// to the first.
template <unsigned kSteps>
BF16CODECS_INLINE void encode_in_turns(const EncodingRows rows[], const uint8_t* classes,
                                       const uint8_t* symbols, Avx2Group groups[],
                                       uint8_t*& words) {
  Step steps[kSteps];
  BF16CODECS_UNROLL
  for (unsigned i = 0; i < kSteps; ++i) {
    prepare(rows[classes[i]], symbols + kStepItems * i, steps[i]);
  }
  BF16CODECS_UNROLL
  for (unsigned i = 0; i < kSteps; ++i) {
    const unsigned last = kSteps - 1 - i;
    make_room(steps[last], groups[last].x, words);
  }
  BF16CODECS_UNROLL
  for (unsigned i = 0; i < kSteps; ++i) divide(steps[i], groups[i].x);
  BF16CODECS_UNROLL
  for (unsigned i = 0; i < kSteps; ++i) join(steps[i], groups[i].x);
}

template <unsigned kSteps>
void encode(TileEncoder& e, const TileCodeTable tables[], const uint8_t* classes, size_t steps,
            const uint8_t* symbols) {
  EncodingRows rows[kTileClasses];
  unsigned made = 0;  // a bit for each class
  States<Avx2Group> states(e);
  uint8_t* words = e.words;
  while (steps != 0) {
    steps -= kSteps;
    for (unsigned i = 0; i < kSteps; ++i) {
      const unsigned c = classes[steps + i];
      if ((made >> c & 1) == 0) [[unlikely]]
        make_encoding_rows(tables[c], rows[c]);
      made |= 1u << c;
    }
    encode_in_turns<kSteps>(rows, classes + steps, symbols + kStepItems * steps, states.of(steps),
                            words);
  }
  states.store(e);
  e.words = words;
}

}  // namespace

void avx2_tiles_decode(TileDecoder& d, const TileTable tables[], const uint8_t* classes,
                       size_t steps, uint8_t* symbols) {
  decode_tiles<DecodingRows, Avx2Group>(d, tables, classes, steps, symbols);
}

void avx2_tiles_encode(TileEncoder& e, const TileCodeTable tables[], const uint8_t* classes,
                       size_t steps, const uint8_t* symbols) {
  const auto encode_with = e.groups == 1 ? encode<1> : encode<2>;
  encode_with(e, tables, classes, steps, symbols);
}

}  // namespace bf16codecs
