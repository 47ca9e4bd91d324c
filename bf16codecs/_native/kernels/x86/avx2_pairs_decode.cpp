// The pairs mode's decoder for AVX2, whose states are those of x86/avx2_words.h. Each group of
// vector instructions is preceded by the scalar formula that it computes.

#include "kernels/pairs_decode.h"
#include "kernels/x86/avx2_pairs.h"

namespace bf16codecs {
namespace {

// The rows of the table for both halves of a register. `last` is what is to be added, in the last
// bucket, to the entry that base and threshold give.
struct DecoderRows {
  __m256i base, threshold, last, frequency, start, symbol, escape;
  explicit DecoderRows(const PairsTable& t)
      : base(load(t.base)),
        threshold(load(t.threshold)),
        frequency(load(t.frequency)),
        start(load(t.start)),
        symbol(load(t.symbol)),
        escape(_mm256_set1_epi8(static_cast<char>(t.escape))) {
    alignas(32) uint8_t correction[32];
    for (unsigned i = 0; i < 32; ++i) {
      const unsigned found = t.base[15] + (0xF0 + i % 16 >= t.threshold[15] ? 1u : 0u);
      correction[i] = static_cast<uint8_t>(t.last[i] - found);
    }
    last = load(correction);
  }
};

// Decodes 32 symbols of 16 lanes; words of symbols and of entries are those of the lanes.
BF16CODECS_INLINE __m256i decode_lanes(const DecoderRows& t, WordStates& x, __m256i& entries) {
  const __m256i byte = _mm256_set1_epi16(255);
  const __m256i last_row = _mm256_set1_epi8(static_cast<char>(0xF0));
  const __m256i slots = x.low;

  // entry = base[bucket] + (slot >= threshold[bucket]) + (in the last bucket last[slot % 16])
  const __m256i bucket = _mm256_and_si256(_mm256_srli_epi16(slots, 4), _mm256_set1_epi8(15));
  const __m256i above = bytes_at_least(slots, _mm256_shuffle_epi8(t.threshold, bucket));
  const __m256i e = _mm256_add_epi8(_mm256_sub_epi8(_mm256_shuffle_epi8(t.base, bucket), above),
                                    _mm256_shuffle_epi8(t.last, index_in_row(slots, last_row)));
  entries = e;

  // f = f[i] f[j] <= 65025,  r = f[i] (b - c[j]) + (a - c[i]) < f: both fit in words
  const __m256i frequency = _mm256_shuffle_epi8(t.frequency, e);
  const __m256i rest = _mm256_sub_epi8(slots, _mm256_shuffle_epi8(t.start, e));
  const __m256i fi = _mm256_and_si256(frequency, byte), fj = _mm256_srli_epi16(frequency, 8);
  const __m256i f = _mm256_mullo_epi16(fi, fj);
  const __m256i r = _mm256_add_epi16(_mm256_mullo_epi16(_mm256_srli_epi16(rest, 8), fi),
                                     _mm256_and_si256(rest, byte));
  // x = f (x >> 16) + r, below 2^32
  x.multiply_high(f, r);
  return _mm256_shuffle_epi8(t.symbol, e);
}

// Puts 64 symbols into a plane, or into items as their high bytes.
struct ToPlane : PlaneSink {
  BF16CODECS_INLINE void put(__m256i first, __m256i second, size_t at) {
    store(plane + at, first);
    store(plane + at + 32, second);
  }
};

struct ToItems : ItemSink {
  BF16CODECS_INLINE void put(__m256i first, __m256i second, size_t at) {
    put_32(first, at), put_32(second, at + 32);
  }

 private:
  // An item is the two bytes as a word, rotated right by one.
  BF16CODECS_INLINE void put_32(__m256i symbols, size_t at) {
    const __m256i l = load(low + at);
    const __m256i lower = rotate_back(_mm256_unpacklo_epi8(l, symbols));  // items 0-7 and 16-23
    const __m256i upper = rotate_back(_mm256_unpackhi_epi8(l, symbols));
    store16(items + 2 * at, _mm256_castsi256_si128(lower));
    store16(items + 2 * at + 16, _mm256_castsi256_si128(upper));
    store16(items + 2 * at + 32, _mm256_extracti128_si256(lower, 1));
    store16(items + 2 * at + 48, _mm256_extracti128_si256(upper, 1));
  }
  static BF16CODECS_INLINE __m256i rotate_back(__m256i v) {
    return _mm256_or_si256(_mm256_srli_epi16(v, 1), _mm256_slli_epi16(v, 15));
  }
};

// The escapes of a group: 255 in the bytes of a lane's symbols.
struct Escapes {
  __m256i even, odd;

  BF16CODECS_INLINE bool any() const {
    return _mm256_movemask_epi8(_mm256_or_si256(even, odd)) != 0;
  }
  BF16CODECS_INLINE uint64_t mask() const {
    return byte_mask(first_bytes(even, odd), second_bytes(even, odd));
  }
};

struct PairsGroup : WordGroup {
  using Rows = DecoderRows;

  template <typename Sink>
  BF16CODECS_INLINE Escapes decode(const Rows& rows, Sink& sink, size_t at) {
    __m256i entries[2];
    const __m256i s = decode_lanes(rows, lanes[0], entries[0]);
    const __m256i t = decode_lanes(rows, lanes[1], entries[1]);
    sink.put(first_bytes(s, t), second_bytes(s, t), at);
    return {_mm256_cmpeq_epi8(entries[0], rows.escape), _mm256_cmpeq_epi8(entries[1], rows.escape)};
  }
};

}  // namespace

size_t avx2_pairs_decode(PairsDecoder& d, const uint8_t* limit, uint8_t* plane, size_t steps) {
  return decode_pairs<PairsGroup>(d, limit, ToPlane{{plane}}, steps);
}

size_t avx2_pairs_decode16(PairsDecoder& d, const uint8_t* limit, const uint8_t* low,
                           uint8_t* items, size_t steps) {
  return decode_pairs<PairsGroup>(d, limit, ToItems{{low, items}}, steps);
}

}  // namespace bf16codecs
