// The difference mode's rANS coder for AVX2 (docs/format_differences.md, "Coding"). The states are
// those of x86/avx2_lanes.h, eight 32-bit lanes in a register: x[0] and x[1] have the even items of
// a step, x[2] and x[3] the odd ones. Items are loaded and stored as words or bytes; those of lanes
// i and 16 + i are neighbours, which are parted to dwords. Unlike AVX-512, which searches for
// entries in registers, this looks slots up in a table in memory: searching by shuffles was no
// faster (docs/experiments.md, "Differences"). Each group of vector instructions is preceded by the
// scalar formula that it computes.

#include "kernels/groups.h"
#include "kernels/x86/avx2_delta.h"
#include "kernels/x86/avx2_lanes.h"

namespace bf16codecs {
namespace {

// Extends 16 bytes, of items 2 i and 2 i + 1, to dwords: dword i has both bytes in its low half.
BF16CODECS_INLINE __m256i dwords(const uint8_t* bytes) {
  return _mm256_cvtepu16_epi32(load16(bytes));
}

// v mod 2^q
BF16CODECS_INLINE __m256i low_bits(__m256i v, __m256i q) {
  return _mm256_andnot_si256(_mm256_sllv_epi32(_mm256_set1_epi32(-1), q), v);
}

// Two numbers of a table. Scalar loads are faster than gather instructions: by 8 % where that was
// measured, and by far on processors whose gathers are slowed down for safety.
BF16CODECS_INLINE __m128i gather2(const uint32_t table[], uint64_t indices) {
  const __m128i first = _mm_cvtsi32_si128(static_cast<int>(table[indices & 0xFFFFFFFF]));
  return _mm_insert_epi32(first, static_cast<int>(table[indices >> 32]), 1);
}

BF16CODECS_INLINE __m128i gather4(const uint32_t table[], __m128i indices) {
  return _mm_unpacklo_epi64(gather2(table, static_cast<uint64_t>(_mm_cvtsi128_si64(indices))),
                            gather2(table, static_cast<uint64_t>(_mm_extract_epi64(indices, 1))));
}

BF16CODECS_INLINE __m256i gather(const uint32_t table[], __m256i indices) {
  return _mm256_set_m128i(gather4(table, _mm256_extracti128_si256(indices, 1)),
                          gather4(table, _mm256_castsi256_si128(indices)));
}

// Bit i for item i of a step, taken from the highest bits of two registers of 16 words. Packing
// keeps signs; the permute undoes its order.
BF16CODECS_INLINE uint32_t item_mask(__m256i first, __m256i last) {
  const __m256i bytes = _mm256_permute4x64_epi64(_mm256_packs_epi16(first, last), 0xD8);
  return static_cast<uint32_t>(_mm256_movemask_epi8(bytes));
}

// A byte for each of eight even and eight odd items, extended to dwords.
struct ItemBytes {
  __m256i even, odd;

  // Parts bytes 2 i and 2 i + 1, which are in dword i with noise above them.
  explicit BF16CODECS_INLINE ItemBytes(__m256i both)
      : even(_mm256_and_si256(both, _mm256_set1_epi32(255))),
        odd(_mm256_and_si256(_mm256_srli_epi32(both, 8), _mm256_set1_epi32(255))) {}
};

// --- decoding ------------------------------------------------------------------------------------

// slot = slots[4096 c + x mod 4096], of eight lanes
BF16CODECS_INLINE __m256i find_slots(const uint32_t slots[], __m256i classes, __m256i x) {
  const __m256i a = _mm256_and_si256(x, _mm256_set1_epi32(4095));
  return gather(slots, _mm256_or_si256(_mm256_slli_epi32(classes, 12), a));
}

BF16CODECS_INLINE void find_slots(const DeltaTables& t, const uint8_t* classes, const __m256i x[4],
                                  __m256i slots[4]) {
  BF16CODECS_UNROLL
  for (unsigned i = 0; i < 2; ++i) {
    const ItemBytes c(dwords(classes + 16 * i));
    slots[i] = find_slots(t.slots, c.even, x[i]);
    slots[2 + i] = find_slots(t.slots, c.odd, x[2 + i]);
  }
}

// Decodes an item in eight lanes; returns the coded numbers, and all bits of the escapes.
BF16CODECS_INLINE __m256i decode_lanes(__m256i slot, __m256i raw, __m256i& x, __m256i& escapes) {
  const __m256i low12 = _mm256_set1_epi32(4095);
  // x = f (x div 4096) + rank, below 2^32; see the ranges in delta.cpp
  const __m256i f = _mm256_and_si256(slot, low12);
  const __m256i rank = _mm256_and_si256(_mm256_srli_epi32(slot, 12), low12);
  x = _mm256_add_epi32(_mm256_mullo_epi32(_mm256_srli_epi32(x, 12), f), rank);
  // number = (base << r) + x mod 2^q,  x = x div 2^q
  const __m256i q = _mm256_and_si256(_mm256_srli_epi32(slot, 24), _mm256_set1_epi32(15));
  const __m256i entry = _mm256_srli_epi32(slot, 28);
  // The upper three bytes of an entry are 0, and shuffle to kDeltaBase[0], which is 0.
  const __m256i base = _mm256_shuffle_epi8(twice(kDeltaBase), entry);
  const __m256i rest = low_bits(x, q);
  x = _mm256_srlv_epi32(x, q);
  escapes = _mm256_cmpeq_epi32(entry, _mm256_set1_epi32(kDeltaEscape));
  return _mm256_add_epi32(_mm256_sllv_epi32(base, raw), rest);
}

// Decodes a step, given its slots; returns the mask of its escapes.
BF16CODECS_INLINE uint32_t decode_step(const DeltaTables& t, const __m256i slots[4],
                                       const uint8_t* classes, Avx2Group& group,
                                       const uint8_t*& words, uint16_t* numbers) {
  __m256i* const x = group.x;
  const __m256i raw_row = twice(t.raw);
  __m256i escapes[2];
  BF16CODECS_UNROLL
  for (unsigned i = 0; i < 2; ++i) {
    const ItemBytes raw(_mm256_shuffle_epi8(raw_row, dwords(classes + 16 * i)));
    __m256i even_escapes, odd_escapes;
    const __m256i even = decode_lanes(slots[i], raw.even, x[i], even_escapes);
    const __m256i odd = decode_lanes(slots[2 + i], raw.odd, x[2 + i], odd_escapes);
    store(numbers + 16 * i, lower_halves(even, odd));
    escapes[i] = lower_halves(even_escapes, odd_escapes);
  }
  group.renormalize(words);
  return item_mask(escapes[0], escapes[1]);
}

// Decodes steps of kSteps groups in turns: a processor does not look far enough ahead to begin with
// one step before the other ends. Two in turns were 18 % faster than one, and 5 % faster than four.
template <unsigned kSteps>
void decode(DeltaDecoder& d, const DeltaTables& tables, const uint8_t* classes, size_t steps,
            uint16_t* numbers, uint32_t* escapes) {
  States<Avx2Group> states(d);
  const uint8_t* words = d.words;
  for (size_t step = 0; step < steps; step += kSteps) {
    __m256i slots[4 * kSteps];
    Avx2Group* const groups = states.of(step);
    BF16CODECS_UNROLL
    for (unsigned i = 0; i < kSteps; ++i) {
      find_slots(tables, classes + kDeltaStep * (step + i), groups[i].x, slots + 4 * i);
    }
    BF16CODECS_UNROLL
    for (unsigned i = 0; i < kSteps; ++i) {
      const size_t at = kDeltaStep * (step + i);
      escapes[step + i] =
          decode_step(tables, slots + 4 * i, classes + at, groups[i], words, numbers + at);
    }
  }
  states.store(d);
  d.words = words;
}

// --- encoding ------------------------------------------------------------------------------------

// By class and entry, q << 28 | start << 12 | f; where f = 0 that of the escape. Escapes have
// kEscapeFlag set as well, a bit that start, below 4096, leaves free.
struct EncodingTable {
  uint32_t entry[kDeltaClasses * kDeltaEntries];
};

constexpr uint32_t kEscapeFlag = 1 << 27;

BF16CODECS_COLD void make_encoding_table(const DeltaTables& t, EncodingTable& table) {
  const auto entry = [&](unsigned at) {
    const uint32_t f = t.coder[at] & 4095, q = t.coder[at] >> 12;
    return q << 28 | static_cast<uint32_t>(t.start[at]) << 12 | f;
  };
  for (unsigned at = 0; at < kDeltaEntries * t.classes; ++at) {
    const unsigned escape = at | kDeltaEscape;
    const bool is_escape = at == escape || (t.coder[at] & 4095) == 0;
    table.entry[at] = is_escape ? entry(escape) | kEscapeFlag : entry(at);
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

// The numbers of a step's items and their words of the table, by lanes.
struct Step {
  __m256i number[4], entry[4];
  uint32_t escapes;
};

// Looks up the table's words for a step, and finds the escapes by their flag.
BF16CODECS_INLINE void prepare(const DeltaTables& t, const EncodingTable& table,
                               const uint8_t* classes, const uint16_t* numbers, Step& step) {
  const __m256i raw_row = twice(t.raw);
  __m256i escapes[2];
  BF16CODECS_UNROLL
  for (unsigned i = 0; i < 2; ++i) {
    const __m256i both = load(numbers + 16 * i);
    const __m256i even = even_lanes(both), odd = odd_lanes(both);
    // v = min(number >> r, 128)
    const ItemBytes raw(_mm256_shuffle_epi8(raw_row, dwords(classes + 16 * i)));
    const __m256i v =
        lower_halves(_mm256_srlv_epi32(even, raw.even), _mm256_srlv_epi32(odd, raw.odd));
    const __m256i least_escape = _mm256_set1_epi16(kMaxDeltaValue + 1);
    // entry = table[16 c + j]
    const __m256i rows = _mm256_slli_epi16(_mm256_cvtepu8_epi16(load16(classes + 16 * i)), 4);
    const __m256i at = _mm256_or_si256(rows, find_entries(_mm256_min_epu16(v, least_escape)));
    const __m256i even_entry = gather(table.entry, even_lanes(at));
    const __m256i odd_entry = gather(table.entry, odd_lanes(at));
    step.number[i] = even, step.number[2 + i] = odd;
    step.entry[i] = even_entry, step.entry[2 + i] = odd_entry;
    const __m256i upper = _mm256_blend_epi16(_mm256_srli_epi32(even_entry, 16), odd_entry, 0xAA);
    escapes[i] = _mm256_slli_epi16(upper, 4);  // the flag is the highest bit
  }
  step.escapes = item_mask(escapes[0], escapes[1]);
}

// Puts numbers on eight states.
BF16CODECS_INLINE void encode_lanes(__m256i& x, __m256i number, __m256i entry, uint8_t*& words) {
  const __m256i low12 = _mm256_set1_epi32(4095);
  const __m256i f = _mm256_and_si256(entry, low12), q = _mm256_srli_epi32(entry, 28);
  // if (x >> (20 - q) >= f) emit a word. q is at most 14, so that the shifted state is below 2^26,
  // and a signed comparison will do.
  const __m256i top = _mm256_srlv_epi32(x, _mm256_sub_epi32(_mm256_set1_epi32(20), q));
  emit(x, _mm256_cmpgt_epi32(f, top), words);
  // x = x << q | number mod 2^q
  x = _mm256_or_si256(_mm256_sllv_epi32(x, q), low_bits(number, q));
  // x = 4096 (x div f) + start + x mod f. The quotient is below 2^20: x >> (20 - q) was below f, or
  // a word was put out, and it is below 2^(q - 4) now, which is at most f.
  const Divided divided = divide_lanes(x, f);
  const __m256i start = _mm256_and_si256(_mm256_srli_epi32(entry, 12), low12);
  x = _mm256_add_epi32(_mm256_slli_epi32(divided.q, 12), _mm256_add_epi32(divided.r, start));
}

BF16CODECS_INLINE void encode_step(const Step& step, __m256i x[4], uint8_t*& words) {
  BF16CODECS_UNROLL
  for (unsigned turn = 0; turn < 4; ++turn) {
    const unsigned i = 3 - turn;
    encode_lanes(x[i], step.number[i], step.entry[i], words);
  }
}

}  // namespace

void avx2_delta_decode(DeltaDecoder& d, const DeltaTables& tables, const uint8_t* classes,
                       size_t steps, uint16_t* numbers, uint32_t* escapes) {
  const auto decode_with = d.groups == 1 ? decode<1> : decode<2>;
  decode_with(d, tables, classes, steps, numbers, escapes);
}

void avx2_delta_encode(DeltaEncoder& e, const DeltaTables& tables, const uint8_t* classes,
                       const uint16_t* numbers, size_t steps, uint32_t* escapes) {
  EncodingTable table;
  make_encoding_table(tables, table);
  States<Avx2Group> states(e);
  uint8_t* words = e.words;
  while (steps-- != 0) {
    Step step;
    prepare(tables, table, classes + kDeltaStep * steps, numbers + kDeltaStep * steps, step);
    encode_step(step, states.of(steps)->x, words);
    escapes[steps] = step.escapes;
  }
  states.store(e);
  e.words = words;
}

}  // namespace bf16codecs
