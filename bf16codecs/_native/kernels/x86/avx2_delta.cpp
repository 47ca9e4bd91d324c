// The difference mode's classes and numbers for AVX2 (docs/format_differences.md, "Numbers"): 16
// items of 16 bits in a register, modulo 2^16 as in the format; the scalar kernels do the last
// ones. Each group of vector instructions is preceded by the scalar formula that it computes.

#include "kernels/x86/avx2_delta.h"

#include "kernels/delta_tables.h"

namespace bf16codecs {
namespace {

constexpr size_t kItems = 16;  // in a vector

BF16CODECS_INLINE __m256i words(unsigned v) {
  return _mm256_set1_epi16(static_cast<short>(v));
}
BF16CODECS_INLINE __m128i count(unsigned v) {
  return _mm_cvtsi32_si128(static_cast<int>(v));
}

// All bits of words that are negative, otherwise none.
BF16CODECS_INLINE __m256i sign_mask(__m256i v) {
  return _mm256_srai_epi16(v, 15);
}
BF16CODECS_INLINE __m256i magnitude(__m256i v) {
  return _mm256_and_si256(v, words(0x7FFF));
}
// d < 0 ? -2 d - 1 : 2 d
BF16CODECS_INLINE __m256i zigzag(__m256i d) {
  return _mm256_xor_si256(_mm256_add_epi16(d, d), sign_mask(d));
}
// z % 2 ? -(z + 1) / 2 : z / 2
BF16CODECS_INLINE __m256i unzigzag(__m256i z) {
  const __m256i odd = _mm256_and_si256(z, words(1));
  return _mm256_xor_si256(_mm256_srli_epi16(z, 1), _mm256_sub_epi16(_mm256_setzero_si256(), odd));
}

// --- classes -------------------------------------------------------------------------------------

class Classifier {
 public:
  explicit BF16CODECS_INLINE Classifier(const DeltaShape& shape)
      : origin_(words(static_cast<unsigned>(shape.origin))),
        last_(_mm256_set1_epi8(static_cast<char>(shape.places - 1))),
        exponent_(count(shape.fraction - 1)),
        step_(count(shape.shift)) {
    for (unsigned i = 0; i < 4; ++i) {
      class_of_[i] = _mm256_broadcastsi128_si256(load16(shape.class_of + 16 * i));
    }
  }

  // (scale - 16 exponent + origin) >> step, of 16 items, in signed words that saturate. The origin
  // less the exponent's part is at least -16383 - 4080, and the last place begins below 1024. So a
  // sum that saturates is in the last place, and so is one of a scale above 32767, which counts as
  // 32767.
  BF16CODECS_INLINE __m256i place(const uint8_t* base, const uint16_t* scales) const {
    const __m256i exponent = _mm256_srl_epi16(magnitude(load(base)), exponent_);
    const __m256i from = _mm256_sub_epi16(origin_, _mm256_slli_epi16(exponent, 4));
    const __m256i scale = _mm256_min_epu16(load(scales), words(0x7FFF));
    return _mm256_sra_epi16(_mm256_adds_epi16(scale, from), step_);
  }

  // class_of[clamp(place, 0, places - 1)], of 32 items. Packing with unsigned saturation makes
  // negative places 0. A shuffle looks at the low four bits of a byte and at its highest, which is
  // not set in a place; a blend looks at the highest alone, to which bits 4 and 5 are moved.
  BF16CODECS_INLINE __m256i classes(__m256i first, __m256i last) const {
    const __m256i place = _mm256_min_epu8(pack(first, last), last_);
    const __m256i bit4 = _mm256_slli_epi16(place, 3), bit5 = _mm256_slli_epi16(place, 2);
    const __m256i low = _mm256_blendv_epi8(_mm256_shuffle_epi8(class_of_[0], place),
                                           _mm256_shuffle_epi8(class_of_[1], place), bit4);
    const __m256i high = _mm256_blendv_epi8(_mm256_shuffle_epi8(class_of_[2], place),
                                            _mm256_shuffle_epi8(class_of_[3], place), bit4);
    return _mm256_blendv_epi8(low, high, bit5);
  }

 private:
  __m256i origin_, last_, class_of_[4];
  __m128i exponent_, step_;
};

void classify16(const DeltaShape& shape, const uint8_t* base, const uint16_t* scales, size_t n,
                uint8_t* classes) {
  const Classifier classifier(shape);
  size_t i = 0;
  for (; i + 2 * kItems <= n; i += 2 * kItems) {
    const __m256i first = classifier.place(base + 2 * i, scales + i);
    const __m256i last = classifier.place(base + 2 * (i + kItems), scales + i + kItems);
    store(classes + i, classifier.classes(first, last));
  }
  kScalarDeltaKernels.classify16(shape, base + 2 * i, scales + i, n - i, classes + i);
}

// --- numbers -------------------------------------------------------------------------------------

// Items to numbers and back, with a shape's constants in registers.
//
// One formula serves near classes and the others, which are called ordered here: both count from a
// magnitude. Let s be all bits if b and x have different signs, otherwise none. Then (|x| ^ s) -
// |b| is order(x) - order(b), or order(b) - order(x) if b is negative, because order(u) is |u|, or
// ~|u| if u is negative. In the other direction, s is the sign of |x| ^ s.
class Numbers {
 public:
  explicit BF16CODECS_INLINE Numbers(const DeltaShape& shape)
      : near_(words(shape.near)),
        above_raw_(words(~0u << shape.near_raw)),
        sign_(words(1u << shape.near_raw)),
        most_(words((1u << (21 - shape.fraction)) - 1)),
        to_top_(count(15 - shape.near_raw)),
        hidden_(count(shape.fraction - 5)) {}

  // Which of 16 items are counted in order, without a sign.
  BF16CODECS_INLINE __m256i ordered(const uint8_t* classes) const {
    return _mm256_cmpgt_epi16(near_, _mm256_cvtepu8_epi16(load16(classes)));
  }

  // The magnitude to count from, modulo 2^16: if ordered |b|, otherwise
  // max(|b|, (scale >> 4) << (fraction - 1)). Where the second term has more than 16 bits, it is
  // larger than any |b|, and its low 16 bits are the result.
  BF16CODECS_INLINE __m256i anchor(__m256i b, __m256i scale, __m256i is_ordered) const {
    const __m256i whole = _mm256_and_si256(_mm256_andnot_si256(is_ordered, words(0xFFF0)), scale);
    const __m256i fits = _mm256_cmpeq_epi16(_mm256_min_epu16(whole, most_), whole);
    const __m256i least = _mm256_sll_epi16(whole, hidden_);
    return _mm256_max_epu16(_mm256_and_si256(magnitude(b), fits), least);
  }

  // y >> r << (r + 1) | sign << r | (y & (2^r - 1)), but 65535 if that is more, which is where y
  // has its highest bit set
  BF16CODECS_INLINE __m256i insert_sign(__m256i y, __m256i sign) const {
    const __m256i spread = _mm256_add_epi16(y, _mm256_and_si256(y, above_raw_));
    const __m256i number = _mm256_or_si256(spread, _mm256_and_si256(sign, sign_));
    return _mm256_or_si256(number, sign_mask(y));
  }
  // y = ordered ? number : number >> (r + 1) << r | (number & (2^r - 1))
  BF16CODECS_INLINE __m256i without_sign(__m256i number, __m256i is_ordered) const {
    const __m256i moved = _mm256_andnot_si256(is_ordered, above_raw_);
    const __m256i changes = _mm256_xor_si256(number, _mm256_srli_epi16(number, 1));
    return _mm256_xor_si256(number, _mm256_and_si256(changes, moved));
  }
  // Bit r as the highest bit, with others below.
  BF16CODECS_INLINE __m256i sign(__m256i number) const { return _mm256_sll_epi16(number, to_top_); }

 private:
  __m256i near_, above_raw_, sign_, most_;
  __m128i to_top_, hidden_;
};

void subtract16(const DeltaShape& shape, const uint8_t* base, const uint8_t* items,
                const uint16_t* scales, const uint8_t* classes, size_t n, uint16_t* numbers) {
  const Numbers shaped(shape);
  size_t i = 0;
  for (; i + kItems <= n; i += kItems) {
    const __m256i b = load(base + 2 * i), x = load(items + 2 * i);
    const __m256i is_ordered = shaped.ordered(classes + i);
    const __m256i differ = sign_mask(_mm256_xor_si256(b, x));
    // y = zigzag((|x| ^ (ordered ? s : 0)) - anchor)
    const __m256i to = _mm256_xor_si256(magnitude(x), _mm256_and_si256(differ, is_ordered));
    const __m256i from = shaped.anchor(b, load(scales + i), is_ordered);
    const __m256i y = zigzag(_mm256_sub_epi16(to, from));
    store(numbers + i, _mm256_blendv_epi8(shaped.insert_sign(y, differ), y, is_ordered));
  }
  kScalarDeltaKernels.subtract16(shape, base + 2 * i, items + 2 * i, scales + i, classes + i, n - i,
                                 numbers + i);
}

void add16(const DeltaShape& shape, const uint8_t* base, const uint16_t* numbers,
           const uint16_t* scales, const uint8_t* classes, size_t n, uint8_t* items) {
  const Numbers shaped(shape);
  size_t i = 0;
  for (; i + kItems <= n; i += kItems) {
    const __m256i b = load(base + 2 * i), number = load(numbers + i);
    const __m256i is_ordered = shaped.ordered(classes + i);
    const __m256i y = shaped.without_sign(number, is_ordered);
    // to = anchor + unzigzag(y),  s = sign of (ordered ? to : number << (15 - r))
    const __m256i from = shaped.anchor(b, load(scales + i), is_ordered);
    const __m256i to = _mm256_add_epi16(from, unzigzag(y));
    const __m256i differs = _mm256_blendv_epi8(shaped.sign(number), to, is_ordered);
    // |x| = to ^ (ordered ? s : 0), and x's sign is s xor b's
    const __m256i x = _mm256_xor_si256(to, _mm256_and_si256(sign_mask(to), is_ordered));
    const __m256i sign = _mm256_xor_si256(differs, b);
    const __m256i item = _mm256_xor_si256(magnitude(_mm256_xor_si256(x, sign)), sign);
    store(items + 2 * i, item);
  }
  kScalarDeltaKernels.add16(shape, base + 2 * i, numbers + i, scales + i, classes + i, n - i,
                            items + 2 * i);
}

}  // namespace

const DeltaKernels kAvx2DeltaKernels = {classify16,        subtract16,        add16,
                                        avx2_delta_decode, spell_out_entries, kDeltaEntryWords,
                                        avx2_delta_encode};

}  // namespace bf16codecs
