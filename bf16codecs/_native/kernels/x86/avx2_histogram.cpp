// Counts of symbols for AVX2. A look-up makes each symbol of the window one of 16 bits, and the
// bits are counted place by place, in vectors of the digits of binary numbers: a vector of 32
// symbols takes 22 instructions, where comparing it with each symbol of the window takes 62.

#include <cstring>

#include "kernels/bits.h"
#include "kernels/x86/avx2.h"

namespace bf16codecs {
namespace {

constexpr unsigned kDigits = 4;
constexpr size_t kVectors = size_t{1} << kDigits, kGroup = 32 * kVectors;

// A bit for each of the 16 symbols of the window, in two bytes.
struct OneHot {
  __m256i low, high;
};

// v = 1 << symbol; a symbol outside of the window has no bit. `others` gets a mask of these.
BF16CODECS_INLINE OneHot one_hot(const uint8_t* plane, __m256i window, uint32_t& others) {
  static constexpr uint8_t kLow[16] = {1, 2, 4, 8, 16, 32, 64, 128};
  static constexpr uint8_t kHigh[16] = {0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 4, 8, 16, 32, 64, 128};
  // A shuffle gives 0 for an index with bit 7 set: adding 0x70 sets it from 16 on, and does not
  // change the low 4 bits.
  const __m256i index =
      _mm256_adds_epu8(_mm256_sub_epi8(load(plane), window), _mm256_set1_epi8(0x70));
  others = static_cast<uint32_t>(_mm256_movemask_epi8(index));
  return {_mm256_shuffle_epi8(twice(kLow), index), _mm256_shuffle_epi8(twice(kHigh), index)};
}

// digit = the lowest digit of digit + v + w, bit by bit; returns the carry.
BF16CODECS_INLINE __m256i add(__m256i& digit, __m256i v, __m256i w) {
  const __m256i sum = _mm256_xor_si256(digit, v);
  const __m256i carry = _mm256_or_si256(_mm256_and_si256(digit, v), _mm256_and_si256(sum, w));
  digit = _mm256_xor_si256(sum, w);
  return carry;
}

class Counter {
 public:
  Counter(uint8_t window, uint32_t counts[256]) : window_(window), counts_(counts) {
    for (OneHot& digit : digits_) digit = {_mm256_setzero_si256(), _mm256_setzero_si256()};
  }

  // Counts kGroup symbols.
  BF16CODECS_INLINE void count(const uint8_t* plane) {
    spill(add_vectors<kDigits>(plane), 1u << kDigits);
  }
  // Adds what the digits hold to the counts.
  void finish() const {
    for (unsigned k = 0; k < kDigits; ++k) spill(digits_[k], 1u << k);
  }

 private:
  // Adds 2^k vectors to the first k digits; returns the carry.
  template <unsigned k>
  BF16CODECS_INLINE OneHot add_vectors(const uint8_t* plane) {
    OneHot v, w;
    if constexpr (k == 1) {
      const __m256i window = _mm256_set1_epi8(static_cast<char>(window_));
      uint32_t others[2];
      v = one_hot(plane, window, others[0]), w = one_hot(plane + 32, window, others[1]);
      if ((others[0] | others[1]) != 0) [[unlikely]]
        count_others(plane, uint64_t{others[1]} << 32 | others[0]);
    } else {
      v = add_vectors<k - 1>(plane), w = add_vectors<k - 1>(plane + (size_t{16} << k));
    }
    OneHot& digit = digits_[k - 1];
    return {add(digit.low, v.low, w.low), add(digit.high, v.high, w.high)};
  }

  void count_others(const uint8_t* plane, uint64_t others) {
    for (; others != 0; others &= others - 1) ++counts_[plane[first_bit(others)]];
  }

  // Adds `weight` for each bit of a digit.
  BF16CODECS_INLINE void spill(const OneHot& digit, unsigned weight) const {
    spill(digit.low, weight, 0), spill(digit.high, weight, 8);
  }
  BF16CODECS_INLINE void spill(__m256i bytes, unsigned weight, unsigned first) const {
    BF16CODECS_UNROLL
    for (unsigned bit = 8; bit-- != 0;) {  // the highest bit of each byte, and then the next one
      const auto set = static_cast<uint32_t>(_mm256_movemask_epi8(bytes));
      counts_[(window_ + first + bit) & 255] += weight * popcount(set);
      bytes = _mm256_add_epi8(bytes, bytes);
    }
  }

  const unsigned window_;
  uint32_t* const counts_;
  OneHot digits_[kDigits];
};

}  // namespace

void avx2_histogram(const uint8_t* plane, size_t n, uint8_t window, uint32_t counts[256]) {
  Counter counter(window, counts);
  size_t i = 0;
  for (; i + kGroup <= n; i += kGroup) counter.count(plane + i);
  // The rest is filled up with symbols of the window, which are not counted in the end.
  if (const size_t rest = n - i; rest != 0) {
    alignas(32) uint8_t last[kGroup];
    std::memcpy(last, plane + i, rest);
    std::memset(last + rest, window, kGroup - rest);
    counter.count(last);
    counts[window] -= static_cast<uint32_t>(kGroup - rest);
  }
  counter.finish();
}

}  // namespace bf16codecs
