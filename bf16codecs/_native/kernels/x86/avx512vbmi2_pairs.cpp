// The pairs mode's kernels for AVX-512 with VBMI2 (docs/format.md, "rANS plane, pairs"), which
// expands and compresses words and permutes bytes of whole registers: the states of a group are two
// registers of words, their low and their high halves, in the order of the lanes. The low halves
// are the slots: byte 2 k is lane k's first symbol, byte 2 k + 1 its second, which is 32 places on.
//
// Each group of vector instructions is preceded by the scalar formula that it computes.

#include "kernels/pairs_decode.h"
#include "kernels/x86/avx512_pairs.h"
#include "kernels/x86/avx512vbmi2_planes.h"

namespace bf16codecs {
namespace {

struct ByteOrder {
  alignas(64) uint8_t at[64];
};

// The byte that has symbol p of a group.
constexpr uint8_t symbol_byte(unsigned p) {
  const unsigned place = p % 32, lane = place / 2 + place % 2 * 16;
  return static_cast<uint8_t>(2 * lane + p / 32);
}

constexpr ByteOrder make_order(bool in_eighths) {
  ByteOrder order{};
  for (unsigned i = 0; i < 64; ++i) {
    // Unpacking takes the lower and the upper eights of 16 bytes in turn: eights 0 2 4 6 must be
    // the first ones, and 1 3 5 7 the last.
    const unsigned eighth = i / 16 + i / 8 % 2 * 4;
    order.at[i] = symbol_byte(in_eighths ? 8 * eighth + i % 8 : i);
  }
  return order;
}

constexpr ByteOrder kPlaneOrder = make_order(false), kItemOrder = make_order(true);

// The places of the symbols of each lane, as words whose upper bytes do not count: the first ones,
// and the second ones.
constexpr ByteOrder make_lane_order(unsigned second) {
  ByteOrder order{};
  for (unsigned lane = 0; lane < 32; ++lane) {
    order.at[2 * lane] = static_cast<uint8_t>(lane_place(lane) + 32 * second);
  }
  return order;
}

constexpr ByteOrder kFirst = make_lane_order(0), kSecond = make_lane_order(1);

// Puts 64 symbols into a plane, or into items as their high bytes.
struct ToPlane : PlaneSink {
  BF16CODECS_INLINE void put(__m512i symbols, size_t at) {
    store(plane + at, _mm512_permutexvar_epi8(load(kPlaneOrder.at), symbols));
  }
};

struct ToItems : ItemSink {
  BF16CODECS_INLINE void put(__m512i symbols, size_t at) {
    const __m512i eighths = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);
    const __m512i l = _mm512_permutexvar_epi64(eighths, load(low + at));
    const __m512i h = _mm512_permutexvar_epi8(load(kItemOrder.at), symbols);
    // An item is the two bytes as a word, rotated right by one.
    const auto rotate_back = [](__m512i v) { return _mm512_shrdi_epi16(v, v, 1); };
    store(items + 2 * at, rotate_back(_mm512_unpacklo_epi8(l, h)));
    store(items + 2 * at + 64, rotate_back(_mm512_unpackhi_epi8(l, h)));
  }
};

// The escapes of a group, as a mask of the bytes of its entries.
struct Escapes {
  uint64_t bytes;

  BF16CODECS_INLINE bool any() const { return bytes != 0; }
  uint64_t mask() const {
    const __m512i in_order = _mm512_permutexvar_epi8(load(kPlaneOrder.at), _mm512_movm_epi8(bytes));
    return _mm512_movepi8_mask(in_order);
  }
};

struct PairsGroup {
  using Rows = DecoderRows;
  Planes x;

  BF16CODECS_INLINE void load(const uint32_t states[kLanesPerGroup]) { x = load_planes(states); }
  BF16CODECS_INLINE void store(uint32_t states[kLanesPerGroup]) const { store_planes(states, x); }

  template <typename Sink>
  BF16CODECS_INLINE Escapes decode(const Rows& t, Sink& sink, size_t at) {
    const auto [e, f, r] = look_up(t, x.low);
    // x = f (x >> 16) + r, below 2^32. The sum of the low halves carries if it is below r.
    x.low = _mm512_add_epi16(_mm512_mullo_epi16(f, x.high), r);
    const __m512i high = _mm512_mulhi_epu16(f, x.high);
    x.high =
        _mm512_mask_sub_epi16(high, _mm512_cmplt_epu16_mask(x.low, r), high, _mm512_set1_epi16(-1));
    sink.put(_mm512_shuffle_epi8(t.symbol, e), at);
    return {_mm512_cmpeq_epi8_mask(e, t.escape)};
  }

  // if (x < 2^16) x = x << 16 | next word, lane by lane: expand gives the k-th lane of the mask the
  // k-th word. It always loads 32 words, however many the lanes need; kWordMargin allows for that.
  BF16CODECS_INLINE void renormalize(const uint8_t*& words) {
    const __m512i next = load_early(words);
    const __mmask32 low = _mm512_testn_epi16_mask(x.high, x.high);
    x.high = _mm512_mask_mov_epi16(x.high, low, x.low);
    x.low = _mm512_mask_expand_epi16(x.low, low, next);
    words += 2 * popcount(low);
  }
};

// An encoder's table by entry, as words: frequency, start, start << 8, and (2^16 - 1) / frequency,
// rounded down.
struct EncoderRows {
  __m512i frequency, start, second_start, inverse;

  explicit EncoderRows(const PairsEncoder& e) {
    const __m512i entries = load(e.entry), word = _mm512_set1_epi32(0xFFFF);
    const __m512i f = _mm512_and_si512(entries, word);
    // The division is exact enough: 65535 / f is at least 1 / 255 below the next integer.
    const __m512i quotient =
        _mm512_cvttps_epi32(_mm512_div_ps(_mm512_set1_ps(65535.0f), _mm512_cvtepi32_ps(f)));
    const auto twice = [](__m512i v) { return _mm512_broadcast_i64x4(_mm512_cvtepi32_epi16(v)); };
    frequency = twice(f);
    start = twice(_mm512_srli_epi32(entries, 16));
    second_start = _mm512_slli_epi16(start, 8);
    inverse = twice(quotient);
  }
};

// The entries of 64 symbols: one permutation for each quarter of the alphabet in which some have an
// entry. All other symbols are escapes.
BF16CODECS_INLINE __m512i find_entries(const PairsEncoder& e, __m512i symbols) {
  const __m512i quarter = _mm512_and_si512(symbols, _mm512_set1_epi8(static_cast<char>(0xC0)));
  __m512i entries = _mm512_set1_epi8(static_cast<char>(e.escape));
  for (unsigned q = 0; q < 4; ++q) {
    if ((e.rows >> 4 * q & 15) == 0) continue;
    const __mmask64 inside =
        _mm512_cmpeq_epi8_mask(quarter, _mm512_set1_epi8(static_cast<char>(q << 6)));
    entries = _mm512_mask_permutexvar_epi8(entries, inside, symbols, load(e.entry_of + 64 * q));
  }
  return entries;
}

// if (x >> 16 >= f) emit x, x >>= 16, from the last lane to the first. Words go downwards in
// memory, so those of a group are stored at once in the order of its lanes, under those before.
BF16CODECS_INLINE void emit(Planes& x, __m512i f, uint8_t*& words) {
  const __mmask32 full = _mm512_cmpge_epu16_mask(x.high, f);
  const unsigned count = popcount(full);
  words -= 2 * count;
  _mm512_mask_storeu_epi16(words, static_cast<__mmask32>((uint64_t{1} << count) - 1),
                           _mm512_maskz_compress_epi16(full, x.low));
  x.low = _mm512_mask_mov_epi16(x.low, full, x.high);
  x.high = _mm512_maskz_mov_epi16(~full, x.high);
}

// x / f, where x < 2^16 f, rounded to the nearest integer, modulo 2^16.
BF16CODECS_INLINE __m512i nearest_quotients(const Planes& x, __m512i f) {
  const __m512i zero = _mm512_setzero_si512();
  const auto quotient = [](__m512i dividend, __m512i divisor) {
    const __m512i q = _mm512_cvtps_epi32(
        _mm512_div_ps(_mm512_cvtepu32_ps(dividend), _mm512_cvtepi32_ps(divisor)));
    return _mm512_and_si512(q, _mm512_set1_epi32(0xFFFF));
  };
  return _mm512_packus_epi32(
      quotient(_mm512_unpacklo_epi16(x.low, x.high), _mm512_unpacklo_epi16(f, zero)),
      quotient(_mm512_unpackhi_epi16(x.low, x.high), _mm512_unpackhi_epi16(f, zero)));
}

// Encodes a group's 64 symbols.
BF16CODECS_INLINE void encode_group(PairsEncoder& e, const EncoderRows& t, const uint8_t* symbols,
                                    Planes& x, uint8_t*& words) {
  const __m512i entries = find_entries(e, load(symbols));
  const __m512i i = _mm512_permutexvar_epi8(load(kFirst.at), entries);
  const __m512i j = _mm512_permutexvar_epi8(load(kSecond.at), entries);
  const __m512i f1 = _mm512_permutexvar_epi16(i, t.frequency);
  const __m512i f = _mm512_mullo_epi16(f1, _mm512_permutexvar_epi16(j, t.frequency));
  const __m512i start = _mm512_or_si512(_mm512_permutexvar_epi16(i, t.start),
                                        _mm512_permutexvar_epi16(j, t.second_start));
  emit(x, f, words);

  // q = x / f, r = x % f. Of the nearest quotient, the remainder is a signed word (lanes.h, "The
  // nearest quotient"); if it is negative, the quotient is one too large.
  const __m512i one = _mm512_set1_epi16(1);
  __m512i q = nearest_quotients(x, f);
  __m512i r = _mm512_sub_epi16(x.low, _mm512_mullo_epi16(q, f));
  const __mmask32 borrowed = _mm512_movepi16_mask(r);
  q = _mm512_mask_sub_epi16(q, borrowed, q, one);
  r = _mm512_mask_add_epi16(r, borrowed, r, f);
  // r2 = r / f1, r1 = r % f1: the inverse is too small by at most 1, and r < 2^16, so that the
  // product is the quotient or one less.
  __m512i r2 = _mm512_mulhi_epu16(r, _mm512_permutexvar_epi16(i, t.inverse));
  __m512i r1 = _mm512_sub_epi16(r, _mm512_mullo_epi16(r2, f1));
  const __mmask32 is_short = _mm512_cmpge_epu16_mask(r1, f1);
  r2 = _mm512_mask_add_epi16(r2, is_short, r2, one);
  r1 = _mm512_mask_sub_epi16(r1, is_short, r1, f1);
  // x = q << 16 | (c[j] + r2) << 8 | (c[i] + r1)
  x.high = q;
  x.low = _mm512_add_epi16(_mm512_add_epi16(start, r1), _mm512_slli_epi16(r2, 8));

  const uint64_t escaped =
      _mm512_cmpeq_epi8_mask(entries, _mm512_set1_epi8(static_cast<char>(e.escape)));
  if (escaped != 0) [[unlikely]]
    save_escapes(e, escaped, symbols);
}

}  // namespace

size_t avx512vbmi2_pairs_decode(PairsDecoder& d, const uint8_t* limit, uint8_t* plane,
                                size_t steps) {
  return decode_pairs<PairsGroup>(d, limit, ToPlane{{plane}}, steps);
}

size_t avx512vbmi2_pairs_decode16(PairsDecoder& d, const uint8_t* limit, const uint8_t* low,
                                  uint8_t* items, size_t steps) {
  return decode_pairs<PairsGroup>(d, limit, ToItems{{low, items}}, steps);
}

void avx512vbmi2_pairs_encode(PairsEncoder& e, const uint8_t* plane, size_t steps) {
  const EncoderRows rows(e);
  States<PairsGroup> groups(e);
  uint8_t* words = e.words;
  for (size_t step = steps * e.groups; step-- != 0;) {
    encode_group(e, rows, plane + kPairSymbols * step, groups.of(step)->x, words);
  }
  e.words = words;
  groups.store(e);
}

}  // namespace bf16codecs
