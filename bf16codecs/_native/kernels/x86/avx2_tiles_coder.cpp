// The tiles mode's rANS coder for AVX2 (docs/format_tiles.md, "Table classes" and "Tiles").
//
// A step's 32 lanes are looked up at once, as bytes: a table of 32 words becomes four rows of 16
// bytes, for the low and the high bytes of its first and of its last 16 entries, and a look-up of
// words is four byte shuffles (docs/experiments.md, "Tiles"). States and bytes are in the orders of
// x86/avx2_words.h.
//
// Each group of vector instructions is preceded by the scalar formula that it computes.

#include "kernels/groups.h"
#include "kernels/x86/avx2_tiles.h"
#include "kernels/x86/avx2_words.h"

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

BF16CODECS_INLINE LaneWords look_up(const WordRow& row, const Index& index) {
  return zip(look_up(row.low, index), look_up(row.high, index));
}

BF16CODECS_INLINE LaneWords both_and(const LaneWords& words, int mask) {
  const __m256i m = _mm256_set1_epi16(static_cast<short>(mask));
  return {{_mm256_and_si256(words[0], m), _mm256_and_si256(words[1], m)}};
}

// 2^n - 1 for bytes n.
BF16CODECS_INLINE __m256i interval_masks(__m256i n) {
  static constexpr uint8_t kMasks[16] = {0, 1, 3, 7, 15, 31};
  return _mm256_shuffle_epi8(twice(kMasks), n);
}

// n of 32 entries, given the high bytes of n << 13 | f or the like.
BF16CODECS_INLINE __m256i interval_bits(__m256i high) {
  return _mm256_and_si256(_mm256_srli_epi16(high, 5), _mm256_set1_epi8(7));
}

// --- decoding ------------------------------------------------------------------------------------

struct DecodingRows {
  Row last_own;  // threshold - 1
  Row alias, base;
  WordRow shift, coder;
};

BF16CODECS_COLD void make_decoding_rows(const TileTable& table, DecodingRows& rows) {
  rows.shift = make_word_row(table.shift), rows.coder = make_word_row(table.coder);
  const WordRow buckets = make_word_row(table.alias);
  const __m256i one = _mm256_set1_epi8(1);
  rows.last_own = {_mm256_sub_epi8(buckets.high.low, one), _mm256_sub_epi8(buckets.high.high, one)};
  rows.alias = buckets.low;
  rows.base = make_word_row(table.symbols).low;
}

// The entries and ranks of 32 slots.
struct Slots {
  __m256i entries;  // bytes
  LaneWords ranks;
};

BF16CODECS_INLINE Slots look_up_slots(const DecodingRows& t, const LaneWords& slots) {
  // b = x mod 32,  p = x div 32 mod 128
  const __m256i b = to_bytes(both_and(slots, 31));
  const LaneWords p =
      both_and({{_mm256_srli_epi16(slots[0], 5), _mm256_srli_epi16(slots[1], 5)}}, 127);
  // lent = p >= threshold[b], as p > threshold[b] - 1: AVX2 compares signed bytes, which hold 0 ...
  // 127 and -1 ... 127
  const Index bucket(b);
  const __m256i lent = _mm256_cmpgt_epi8(to_bytes(p), look_up(t.last_own, bucket));
  // entry = lent ? alias[b] : b,  rank = p + (lent ? shift[b] : 0)
  const LaneWords shift = zip(_mm256_and_si256(lent, look_up(t.shift.low, bucket)),
                              _mm256_and_si256(lent, look_up(t.shift.high, bucket)));
  return {_mm256_blendv_epi8(b, look_up(t.alias, bucket), lent),
          {{_mm256_add_epi16(p[0], shift[0]), _mm256_add_epi16(p[1], shift[1])}}};
}

// What belongs to a step's slots: the entries' 16 f and 2^(16 - n), which is 0 where n = 0, the
// ranks, and for bytes base and 2^n - 1.
struct Decoding {
  LaneWords f16, power, ranks;
  __m256i base, masks;
};

// The first phase of a step.
BF16CODECS_INLINE void look_up_entries(const DecodingRows& t, const WordGroup& x, Decoding& step) {
  static constexpr uint8_t kPowers[16] = {0, 128, 64, 32, 16, 8};  // 2^(16 - n) div 256
  const Slots at = look_up_slots(t, x.low());
  const Index entry(at.entries);
  const __m256i high = look_up(t.coder.high, entry), n = interval_bits(high);
  const LaneWords coder = zip(look_up(t.coder.low, entry), high);
  // Shifted, the words lose n.
  step.f16 = {{_mm256_slli_epi16(coder[0], 4), _mm256_slli_epi16(coder[1], 4)}};
  step.power = zip(_mm256_setzero_si256(), _mm256_shuffle_epi8(twice(kPowers), n));
  step.ranks = at.ranks;
  step.base = look_up(t.base, entry);
  step.masks = interval_masks(n);
}

// The second phase, up to the words.
BF16CODECS_INLINE void take_symbols(const Decoding& step, WordGroup& x, uint8_t* symbols) {
  // x = f (x div 4096) + r, below 2^32; see the ranges in tiles.cpp
  BF16CODECS_UNROLL
  for (unsigned k = 0; k < 2; ++k) x.lanes[k].advance(step.f16[k], step.ranks[k]);
  // symbol = base + x mod 2^n. base is a multiple of 2^n, and n at most 5, so that bytes and an or
  // will do.
  const __m256i rest = _mm256_and_si256(to_bytes(both_and(x.low(), 255)), step.masks);
  store(symbols, to_symbols(_mm256_or_si256(step.base, rest)));
  // x = x div 2^n
  BF16CODECS_UNROLL
  for (unsigned k = 0; k < 2; ++k) x.lanes[k].shift_right(step.power[k]);
}

// Decodes a step of each of kSteps groups, phase by phase in turns: a processor does not look far
// enough ahead to begin with one step before the other ends.
template <unsigned kSteps>
BF16CODECS_INLINE void decode_in_turns(const DecodingRows rows[], const uint8_t* classes,
                                       WordGroup groups[], const uint8_t*& words,
                                       uint8_t* symbols) {
  Decoding steps[kSteps];
  BF16CODECS_UNROLL
  for (unsigned i = 0; i < kSteps; ++i) look_up_entries(rows[classes[i]], groups[i], steps[i]);
  BF16CODECS_UNROLL
  for (unsigned i = 0; i < kSteps; ++i) {
    take_symbols(steps[i], groups[i], symbols + kStepItems * i);
  }
  BF16CODECS_UNROLL
  for (unsigned i = 0; i < kSteps; ++i) groups[i].renormalize(words);
}

// Rows of the classes, made when the first step of each comes.
template <typename Rows, typename Table>
class RowsByClass {
 public:
  RowsByClass(const Table tables[], void (*make)(const Table&, Rows&))
      : tables_(tables), make_(make) {}

  BF16CODECS_INLINE void prepare(unsigned c) {
    if ((made_ >> c & 1) != 0) [[likely]]
      return;
    make_(tables_[c], rows_[c]);
    made_ |= 1u << c;
  }
  BF16CODECS_INLINE const Rows* all() const { return rows_; }

 private:
  const Table* tables_;
  void (*make_)(const Table&, Rows&);
  unsigned made_ = 0;  // a bit for each class
  Rows rows_[kTileClasses];
};

template <unsigned kSteps>
void decode(TileDecoder& d, const TileTable tables[], const uint8_t* classes, size_t steps,
            uint8_t* symbols) {
  RowsByClass<DecodingRows, TileTable> rows(tables, make_decoding_rows);
  States<WordGroup> states(d);
  const uint8_t* words = d.words;
  for (size_t step = 0; step < steps; step += kSteps) {
    for (unsigned i = 0; i < kSteps; ++i) rows.prepare(classes[step + i]);
    decode_in_turns<kSteps>(rows.all(), classes + step, states.of(step), words,
                            symbols + kStepItems * step);
  }
  states.store(d);
  d.words = words;
}

// --- encoding ------------------------------------------------------------------------------------

// The rows by which a table's symbols are coded. Their entries are numbered 1 ... n, modulo 32, in
// the order of the symbols; the numbers before and after are the escape's.
//
// A symbol's number is that of the symbol 8 (symbol div 8), and one more for each interval that
// begins between them, for which there is a bit.
struct EncodingRows {
  const uint16_t* slots;
  Row entry, begins;  // by symbol div 8
  WordRow limit;      // 16 f div 2^n: f is a multiple of 2 where n = 5
  WordRow place;      // n << 13 | first
};

BF16CODECS_COLD void make_encoding_rows(const TileCodeTable& table, EncodingRows& rows) {
  constexpr unsigned kTogether = 8, kEscape = kTileEntries - 1;
  alignas(32) uint8_t entry[kTileEntries] = {}, begins[kTileEntries] = {};
  alignas(32) uint16_t limit[kTileEntries], place[kTileEntries];
  unsigned before = kEscape, current = 0;
  for (unsigned symbol = 0; symbol < 256; ++symbol) {
    const bool is_next = table.entry_of[symbol] != before;
    before = table.entry_of[symbol];
    current += is_next;
    if (symbol % kTogether == 0) {
      entry[symbol / kTogether] = static_cast<uint8_t>(current);
    } else if (is_next) {
      begins[symbol / kTogether] |= static_cast<uint8_t>(1u << symbol % kTogether);
    }
  }
  for (unsigned i = 0; i < kTileEntries; ++i) {
    // What is after the last interval has no slots.
    const unsigned j = i == 0 || (table.coder[i - 1] & 0xFFF) == 0 ? kEscape : i - 1;
    const unsigned f = table.coder[j] & 0x1FFF, n = table.coder[j] >> 13;
    limit[i] = static_cast<uint16_t>(f << 4 >> n);
    place[i] = static_cast<uint16_t>(n << 13 | table.first[j]);
  }
  rows = {table.slot, make_row(load(entry)), make_row(load(begins)), make_word_row(limit),
          make_word_row(place)};
}

BF16CODECS_INLINE __m256i find_entries(const EncodingRows& t, __m256i symbols) {
  // Bits 1 ... k, for k = symbol mod 8.
  static constexpr uint8_t kUpTo[16] = {0, 2, 6, 14, 30, 62, 126, 254};
  const __m256i last5 = _mm256_set1_epi8(31), last3 = _mm256_set1_epi8(7);
  const Index group(_mm256_and_si256(_mm256_srli_epi16(symbols, 3), last5));
  const __m256i up_to = _mm256_shuffle_epi8(twice(kUpTo), _mm256_and_si256(symbols, last3));
  const __m256i more = count_in_bytes(_mm256_and_si256(look_up(t.begins, group), up_to));
  return _mm256_and_si256(_mm256_add_epi8(look_up(t.entry, group), more), last5);
}

// What a step's symbols and table say: the symbols' places in their intervals, and 2^n, the entry's
// limit and its first position.
struct Step {
  const uint16_t* slots;
  LaneWords rest, power, limit, first, positions;
};

// The first phase of a step: looks up the entries of its symbols and all that belongs to them.
BF16CODECS_INLINE void prepare(const EncodingRows& t, const uint8_t* symbols, Step& step) {
  static constexpr uint8_t kPowers[16] = {1, 2, 4, 8, 16, 32};
  const __m256i zero = _mm256_setzero_si256();
  const __m256i packed = to_lanes(load(symbols));
  const Index entry(find_entries(t, packed));
  const __m256i high = look_up(t.place.high, entry);
  const __m256i n = interval_bits(high);
  step.slots = t.slots;
  step.rest = zip(_mm256_and_si256(packed, interval_masks(n)), zero);
  step.power = zip(_mm256_shuffle_epi8(twice(kPowers), n), zero);
  step.limit = look_up(t.limit, entry);
  step.first = both_and(zip(look_up(t.place.low, entry), high), 0x1FFF);
}

// x = 4096 (x div f) for x = 2^n x + symbol - base, which is below f 2^20; and the positions of
// rank x mod f.
BF16CODECS_INLINE void divide(Step& step, WordGroup& x) {
  __m256i f[2];
  Quotients q[2];
  BF16CODECS_UNROLL
  for (unsigned k = 0; k < 2; ++k) {
    f[k] = _mm256_srli_epi16(_mm256_mullo_epi16(step.limit[k], step.power[k]), 4);
    x.lanes[k].shift_left(step.power[k], step.rest[k]);
    q[k] = x.lanes[k].divide_roughly(f[k]);
  }
  BF16CODECS_UNROLL
  for (unsigned k = 0; k < 2; ++k) {
    const __m256i rank = x.lanes[k].divide(f[k], q[k]);
    step.positions.v[k] = _mm256_add_epi16(step.first[k], rank);
  }
}

// Four words of a table, from lane kFirst of `v` on. Scalar loads are faster than a gather
// instruction.
template <int kFirst>
BF16CODECS_INLINE __m128i insert4(__m128i v, const uint16_t table[], uint64_t at) {
  v = _mm_insert_epi16(v, table[at & 0xFFFF], kFirst);
  v = _mm_insert_epi16(v, table[at >> 16 & 0xFFFF], kFirst + 1);
  v = _mm_insert_epi16(v, table[at >> 32 & 0xFFFF], kFirst + 2);
  return _mm_insert_epi16(v, table[at >> 48], kFirst + 3);
}

BF16CODECS_INLINE __m128i gather8(const uint16_t table[], __m128i at) {
  const auto low = static_cast<uint64_t>(_mm_cvtsi128_si64(at));
  const auto high = static_cast<uint64_t>(_mm_extract_epi64(at, 1));
  return insert4<4>(insert4<0>(_mm_setzero_si128(), table, low), table, high);
}

// x = x + slot[first + r]
BF16CODECS_INLINE void join(const Step& step, WordGroup& x) {
  BF16CODECS_UNROLL
  for (unsigned k = 0; k < 2; ++k) {
    const __m128i low = _mm256_castsi256_si128(step.positions[k]);
    const __m128i high = _mm256_extracti128_si256(step.positions[k], 1);
    const __m256i slots = _mm256_set_m128i(gather8(step.slots, high), gather8(step.slots, low));
    x.lanes[k].low = _mm256_or_si256(x.lanes[k].low, slots);
  }
}

// Encodes a step of each of kSteps groups, phase by phase in turns: a processor does not look far
// enough ahead to begin with one step before the other ends. Words are emitted from the last group
// to the first.
template <unsigned kSteps>
BF16CODECS_INLINE void encode_in_turns(const EncodingRows rows[], const uint8_t* classes,
                                       const uint8_t* symbols, WordGroup groups[],
                                       uint8_t*& words) {
  Step steps[kSteps];
  BF16CODECS_UNROLL
  for (unsigned i = 0; i < kSteps; ++i) {
    prepare(rows[classes[i]], symbols + kStepItems * i, steps[i]);
  }
  BF16CODECS_UNROLL
  for (unsigned i = 0; i < kSteps; ++i) {
    const unsigned last = kSteps - 1 - i;
    groups[last].make_room(steps[last].limit, words);
  }
  BF16CODECS_UNROLL
  for (unsigned i = 0; i < kSteps; ++i) divide(steps[i], groups[i]);
  BF16CODECS_UNROLL
  for (unsigned i = 0; i < kSteps; ++i) join(steps[i], groups[i]);
}

template <unsigned kSteps>
void encode(TileEncoder& e, const TileCodeTable tables[], const uint8_t* classes, size_t steps,
            const uint8_t* symbols) {
  RowsByClass<EncodingRows, TileCodeTable> rows(tables, make_encoding_rows);
  States<WordGroup> states(e);
  uint8_t* words = e.words;
  while (steps != 0) {
    steps -= kSteps;
    for (unsigned i = 0; i < kSteps; ++i) rows.prepare(classes[steps + i]);
    encode_in_turns<kSteps>(rows.all(), classes + steps, symbols + kStepItems * steps,
                            states.of(steps), words);
  }
  states.store(e);
  e.words = words;
}

}  // namespace

void avx2_tiles_decode(TileDecoder& d, const TileTable tables[], const uint8_t* classes,
                       size_t steps, uint8_t* symbols) {
  const auto decode_with = d.groups == 1 ? decode<1> : decode<2>;
  decode_with(d, tables, classes, steps, symbols);
}

void avx2_tiles_encode(TileEncoder& e, const TileCodeTable tables[], const uint8_t* classes,
                       size_t steps, const uint8_t* symbols) {
  const auto encode_with = e.groups == 1 ? encode<1> : encode<2>;
  encode_with(e, tables, classes, steps, symbols);
}

}  // namespace bf16codecs
