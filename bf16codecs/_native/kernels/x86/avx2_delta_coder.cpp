// The difference mode's rANS coder for AVX2 (docs/format_differences.md, "Coding"), in words of 16
// lanes: see x86/avx2_words.h. Unlike AVX-512, which searches for entries in registers, this looks
// slots up in a table in memory: searching by shuffles was no faster (docs/experiments.md,
// "Differences"). Each group of vector instructions is preceded by the scalar formula that it
// computes.

#include "kernels/groups.h"
#include "kernels/x86/avx2_delta.h"
#include "kernels/x86/avx2_words.h"

namespace bf16codecs {
namespace {

// Parts 32 bytes in the order of the items to words: those of even items, and of odd ones.
BF16CODECS_INLINE LaneWords part_bytes(__m256i bytes) {
  return {{_mm256_and_si256(bytes, words_of(255)), _mm256_srli_epi16(bytes, 8)}};
}

// Bit i for item i of a step, of words that are all ones or zero.
BF16CODECS_INLINE uint32_t item_mask(const LaneWords& set) {
  const __m256i even = _mm256_and_si256(set[0], words_of(0x00FF));
  const __m256i odd = _mm256_and_si256(set[1], words_of(0xFF00));
  return static_cast<uint32_t>(_mm256_movemask_epi8(_mm256_or_si256(even, odd)));
}

// Look-ups by words q below 16 of words that have a low byte by q and a high one by q - 8. For
// indices with bit 7 set, those below 0, a shuffle gives 0.
class ByQ {
 public:
  explicit BF16CODECS_INLINE ByQ(__m256i q) : both_(_mm256_or_si256(q, _mm256_slli_epi16(q, 8))) {}

  // 2^q
  BF16CODECS_INLINE __m256i power() const {
    static constexpr uint8_t kPowers[16] = {1, 2, 4, 8, 16, 32, 64, 128};
    return _mm256_shuffle_epi8(twice(kPowers), high_later());
  }
  // 2^q - 1
  BF16CODECS_INLINE __m256i mask() const {
    static constexpr uint8_t kMasks[16] = {0,   1,   3,   7,   15,  31,  63,  127,
                                           255, 255, 255, 255, 255, 255, 255, 255};
    return _mm256_shuffle_epi8(twice(kMasks), high_later());
  }
  // 2^(16 - q), or 0 where q = 0: here the high byte is by q, and the low one by q - 8.
  BF16CODECS_INLINE __m256i inverse_power() const {
    static constexpr uint8_t kPowers[16] = {0, 128, 64, 32, 16, 8, 4, 2, 1};
    return _mm256_shuffle_epi8(twice(kPowers), _mm256_sub_epi8(both_, words_of(0x0008)));
  }

 private:
  BF16CODECS_INLINE __m256i high_later() const { return _mm256_sub_epi8(both_, words_of(0x0800)); }

  __m256i both_;
};

// Numbers of a table, of 16 bits in each half: low and high halves of those at 16 indices. Scalar
// loads are faster than gather instructions: by 8 % where that was measured, and by far on
// processors whose gathers are slowed down for safety.
struct Halves {
  __m256i low, high;
};

// Indices `at` and `at` + 2 of four.
template <typename Read>
BF16CODECS_INLINE __m128i read_pair(Read read, uint64_t four, unsigned at) {
  const auto first = static_cast<int>(read(static_cast<uint16_t>(four >> 16 * at)));
  const auto second = static_cast<int>(read(static_cast<uint16_t>(four >> 16 * (at + 2))));
  return _mm_insert_epi32(_mm_cvtsi32_si128(first), second, 1);
}

template <typename Read>
BF16CODECS_INLINE Halves gather(Read read, __m256i at) {
  const __m128i low = _mm256_castsi256_si128(at), high = _mm256_extracti128_si256(at, 1);
  const uint64_t fours[4] = {static_cast<uint64_t>(_mm_cvtsi128_si64(low)),
                             static_cast<uint64_t>(_mm_extract_epi64(low, 1)),
                             static_cast<uint64_t>(_mm_cvtsi128_si64(high)),
                             static_cast<uint64_t>(_mm_extract_epi64(high, 1))};
  const auto read_four = [&](unsigned i, unsigned first) {
    return _mm_unpacklo_epi64(read_pair(read, fours[i], first),
                              read_pair(read, fours[i + 1], first));
  };
  const __m256i v = _mm256_set_m128i(read_four(2, 0), read_four(0, 0));
  const __m256i w = _mm256_set_m128i(read_four(2, 1), read_four(0, 1));
  return {_mm256_blend_epi16(v, _mm256_slli_epi32(w, 16), 0xAA),
          _mm256_blend_epi16(_mm256_srli_epi32(v, 16), w, 0xAA)};
}

// --- decoding ------------------------------------------------------------------------------------

// The indices of a step's slots, 4096 c + x mod 4096. A class is below 16, so that they are words.
BF16CODECS_INLINE LaneWords find_slots(const uint8_t* classes, const WordGroup& x) {
  const LaneWords c = part_bytes(load(classes));
  LaneWords at;
  BF16CODECS_UNROLL
  for (unsigned k = 0; k < 2; ++k) {
    const __m256i slot = _mm256_and_si256(x.lanes[k].low, words_of(4095));
    at.v[k] = _mm256_or_si256(_mm256_slli_epi16(c[k], 12), slot);
  }
  return at;
}

// What belongs to a class: 2^r - 1, which is a byte.
BF16CODECS_INLINE __m256i raw_masks(const DeltaTables& t) {
  static constexpr uint8_t kMasks[16] = {0, 1, 3, 7, 15, 31, 63, 127, 255};
  return _mm256_shuffle_epi8(twice(kMasks), twice(t.raw));
}

// Decodes a step up to its words, given its entries, and where its slots are; returns the mask of
// its escapes.
BF16CODECS_INLINE uint32_t decode_step(const Halves entries[2], const LaneWords& at,
                                       __m256i raw_masks, const uint8_t* classes, WordGroup& x,
                                       uint16_t* numbers) {
  const LaneWords raw = part_bytes(_mm256_shuffle_epi8(raw_masks, load(classes)));
  LaneWords number, escapes;
  BF16CODECS_UNROLL
  for (unsigned k = 0; k < 2; ++k) {
    // x = f (x div 4096) + rank, below 2^32; see the ranges in delta.cpp. Shifted, the words lose
    // q.
    const __m256i rank = _mm256_sub_epi16(at[k], entries[k].high);
    x.lanes[k].advance(_mm256_slli_epi16(entries[k].low, 4),
                       _mm256_and_si256(rank, words_of(4095)));
    // number = (base << r) + x mod 2^q,  x = x div 2^q
    const ByQ q(_mm256_srli_epi16(entries[k].low, 12));
    const __m256i entry = _mm256_srli_epi16(entries[k].high, 12);
    // The high byte of an entry is 0, and shuffles to kDeltaBase[0], which is 0.
    const __m256i base = _mm256_shuffle_epi8(twice(kDeltaBase), entry);
    const __m256i rest = _mm256_and_si256(x.lanes[k].low, q.mask());
    const __m256i shifted = _mm256_add_epi16(_mm256_mullo_epi16(base, raw[k]), base);
    number.v[k] = _mm256_add_epi16(shifted, rest);
    escapes.v[k] = _mm256_cmpeq_epi16(entry, words_of(kDeltaEscape));
    x.lanes[k].shift_right(q.inverse_power());
  }
  const __m256i v = _mm256_unpacklo_epi16(number[0], number[1]);
  const __m256i w = _mm256_unpackhi_epi16(number[0], number[1]);
  store(numbers, _mm256_permute2x128_si256(v, w, 0x20));
  store(numbers + 16, _mm256_permute2x128_si256(v, w, 0x31));
  return item_mask(escapes);
}

// Decodes steps of kSteps groups in turns: a processor does not look far enough ahead to begin with
// one step before the other ends.
template <unsigned kSteps>
void decode(DeltaDecoder& d, const DeltaTables& tables, const uint8_t* classes, size_t steps,
            uint16_t* numbers, uint32_t* escapes) {
  const __m256i raw = raw_masks(tables);
  const auto read = [&](uint16_t slot) { return tables.entries[tables.entry_at[slot]]; };
  States<WordGroup> states(d);
  const uint8_t* words = d.words;
  for (size_t step = 0; step < steps; step += kSteps) {
    LaneWords at[kSteps];
    Halves entries[kSteps][2];
    WordGroup* const groups = states.of(step);
    BF16CODECS_UNROLL
    for (unsigned i = 0; i < kSteps; ++i) {
      at[i] = find_slots(classes + kDeltaStep * (step + i), groups[i]);
    }
    BF16CODECS_UNROLL
    for (unsigned i = 0; i < kSteps; ++i) {
      BF16CODECS_UNROLL
      for (unsigned k = 0; k < 2; ++k) entries[i][k] = gather(read, at[i][k]);
    }
    BF16CODECS_UNROLL
    for (unsigned i = 0; i < kSteps; ++i) {
      const size_t first = kDeltaStep * (step + i);
      escapes[step + i] =
          decode_step(entries[i], at[i], raw, classes + first, groups[i], numbers + first);
    }
    BF16CODECS_UNROLL
    for (unsigned i = 0; i < kSteps; ++i) groups[i].renormalize(words);
  }
  states.store(d);
  d.words = words;
}

// --- encoding ------------------------------------------------------------------------------------

// By class and entry, q << 28 | start << 16 | 16 f div 2^q; where f = 0 that of the escape.
struct EncodingTable {
  uint32_t entry[kDeltaClasses * kDeltaEntries];
};

BF16CODECS_COLD void make_encoding_table(const DeltaTables& t, EncodingTable& table) {
  for (unsigned at = 0; at < kDeltaEntries * t.classes; ++at) {
    const unsigned from = (t.coder[at] & 4095) == 0 ? at | kDeltaEscape : at;
    const uint32_t f = t.coder[from] & 4095, q = t.coder[from] >> 12;
    table.entry[at] = q << 28 | static_cast<uint32_t>(t.start[from]) << 16 | f << 4 >> q;
  }
}

// The entries of words v, at most 128. The high bytes of the words are 0, and stay 0.
BF16CODECS_INLINE __m256i find_entries(__m256i v) {
  static constexpr uint8_t kBelow16[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 8, 9, 9, 10, 10, 11, 11};
  static constexpr uint8_t kFrom16[16] = {0, 12, 13, 13, 14, 14, 14, 14, kDeltaEscape};
  // Below 16 the second row gives 0; from 16 on it gives 12 or more, and the first row at most 11,
  // or 0 where v is 128.
  return _mm256_max_epu8(_mm256_shuffle_epi8(twice(kBelow16), v),
                         _mm256_shuffle_epi8(twice(kFrom16), _mm256_srli_epi16(v, 4)));
}

// Parts 32 numbers in the order of the items to those of even items, and of odd ones.
BF16CODECS_INLINE LaneWords part_words(const uint16_t* numbers) {
  const auto* const bytes = reinterpret_cast<const uint8_t*>(numbers);
  const __m256i v = load_halves(bytes, bytes + 32), w = load_halves(bytes + 16, bytes + 48);
  const __m256i word = _mm256_set1_epi32(0xFFFF);
  return {{_mm256_packus_epi32(_mm256_and_si256(v, word), _mm256_and_si256(w, word)),
           _mm256_packus_epi32(_mm256_srli_epi32(v, 16), _mm256_srli_epi32(w, 16))}};
}

// 2^(8 - r) by class, or 0 where r = 0.
BF16CODECS_INLINE __m256i raw_shifts(const DeltaTables& t) {
  static constexpr uint8_t kPowers[16] = {0, 128, 64, 32, 16, 8, 4, 2, 1};
  return _mm256_shuffle_epi8(twice(kPowers), twice(t.raw));
}

// The state of a step between its phases: its numbers, and what the table says of them.
struct Step {
  LaneWords number;
  LaneWords limit, start, power, f;
};

// The first phase of a step: looks up the words of its numbers; returns the mask of its escapes.
BF16CODECS_INLINE uint32_t look_up(const EncodingTable& table, __m256i raw_shifts,
                                   const uint8_t* classes, const uint16_t* numbers, Step& step) {
  const __m256i packed = load(classes), zero = _mm256_setzero_si256();
  const __m256i shifts = _mm256_shuffle_epi8(raw_shifts, packed);
  const LaneWords c = part_bytes(packed);
  const LaneWords power = {
      {_mm256_slli_epi16(shifts, 8), _mm256_and_si256(shifts, words_of(0xFF00))}};
  step.number = part_words(numbers);
  LaneWords escapes;
  BF16CODECS_UNROLL
  for (unsigned k = 0; k < 2; ++k) {
    // v = min(number >> r, 128)
    const __m256i whole = _mm256_and_si256(step.number[k], _mm256_cmpeq_epi16(power[k], zero));
    const __m256i shifted = _mm256_mulhi_epu16(step.number[k], power[k]);
    const __m256i v =
        _mm256_min_epu16(_mm256_or_si256(shifted, whole), words_of(kMaxDeltaValue + 1));
    // entry = table[16 c + j]
    const __m256i at = _mm256_or_si256(_mm256_slli_epi16(c[k], 4), find_entries(v));
    const Halves entry = gather([&](uint16_t i) { return table.entry[i]; }, at);
    step.limit.v[k] = entry.low;
    step.start.v[k] = _mm256_and_si256(entry.high, words_of(4095));
    step.power.v[k] = ByQ(_mm256_srli_epi16(entry.high, 12)).power();
    const __m256i f = _mm256_srli_epi16(_mm256_mullo_epi16(entry.low, step.power[k]), 4);
    step.f.v[k] = f;
    // The escape is the last entry, and no other ends at 4096.
    escapes.v[k] = _mm256_cmpeq_epi16(_mm256_add_epi16(step.start[k], f), words_of(4096));
  }
  return item_mask(escapes);
}

// Puts numbers on the states, given that there is room. q is at most 14, and 16 f a multiple of
// 2^q. With its raw bits x is below f 2^20: it was below f 2^(20 - q), or a word was put out, and
// it is below 2^16 now, which is at most that.
BF16CODECS_INLINE void join(const Step& step, WordGroup& x) {
  Quotients q[2];
  BF16CODECS_UNROLL
  for (unsigned k = 0; k < 2; ++k) {
    // x = x << q | number mod 2^q
    const __m256i mask = _mm256_sub_epi16(step.power[k], words_of(1));
    x.lanes[k].shift_left(step.power[k], _mm256_and_si256(step.number[k], mask));
    q[k] = x.lanes[k].divide_roughly(step.f[k]);
  }
  BF16CODECS_UNROLL
  for (unsigned k = 0; k < 2; ++k) {
    // x = 4096 (x div f) + start + x mod f
    const __m256i rank = x.lanes[k].divide(step.f[k], q[k]);
    x.lanes[k].low = _mm256_or_si256(x.lanes[k].low, _mm256_add_epi16(step.start[k], rank));
  }
}

// Encodes steps of kSteps groups in turns. Words are emitted from the last group to the first.
template <unsigned kSteps>
void encode(DeltaEncoder& e, const DeltaTables& tables, const uint8_t* classes,
            const uint16_t* numbers, size_t steps, uint32_t* escapes) {
  EncodingTable table;
  make_encoding_table(tables, table);
  const __m256i shifts = raw_shifts(tables);
  States<WordGroup> states(e);
  uint8_t* words = e.words;
  while (steps != 0) {
    steps -= kSteps;
    Step step[kSteps];
    WordGroup* const groups = states.of(steps);
    BF16CODECS_UNROLL
    for (unsigned i = 0; i < kSteps; ++i) {
      const size_t first = kDeltaStep * (steps + i);
      escapes[steps + i] = look_up(table, shifts, classes + first, numbers + first, step[i]);
    }
    BF16CODECS_UNROLL
    for (unsigned i = 0; i < kSteps; ++i) {
      const unsigned last = kSteps - 1 - i;
      groups[last].make_room(step[last].limit, words);
    }
    BF16CODECS_UNROLL
    for (unsigned i = 0; i < kSteps; ++i) join(step[i], groups[i]);
  }
  states.store(e);
  e.words = words;
}

}  // namespace

void avx2_delta_decode(DeltaDecoder& d, const DeltaTables& tables, const uint8_t* classes,
                       size_t steps, uint16_t* numbers, uint32_t* escapes) {
  const auto decode_with = d.groups == 1 ? decode<1> : decode<2>;
  decode_with(d, tables, classes, steps, numbers, escapes);
}

void avx2_delta_encode(DeltaEncoder& e, const DeltaTables& tables, const uint8_t* classes,
                       const uint16_t* numbers, size_t steps, uint32_t* escapes) {
  const auto encode_with = e.groups == 1 ? encode<1> : encode<2>;
  encode_with(e, tables, classes, numbers, steps, escapes);
}

}  // namespace bf16codecs
