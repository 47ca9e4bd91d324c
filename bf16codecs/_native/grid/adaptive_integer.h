#pragma once

// Numbers of side information, and their decoding (docs/format_scale.md, "Adaptive integers"). The
// code for CUDA includes this file and has no standard library.

#include <cstddef>
#include <cstdint>

namespace bf16codecs::grid {

// The probability of a 1 in 65536ths, and the number of updates, up to 8.
struct AdaptiveBit {
  uint16_t probability = 1 << 15;
  uint16_t seen = 0;

  // Moves the probability towards the bit, by a fraction that shrinks with the number of updates.
  // Limits keep every bit's cost at 0.011 bits or more, so that a stream's size bounds the number
  // of integers in it.
  void update(bool bit) {
    static constexpr uint8_t kRates[8] = {1, 2, 2, 3, 3, 4, 4, 4};
    static constexpr int kMargin = 512;
    const int rate = seen < 8 ? kRates[seen++] : 5;
    const int moved =
        bit ? probability + ((65536 - probability) >> rate) : probability - (probability >> rate);
    const int most = 65536 - kMargin;
    probability = static_cast<uint16_t>(moved < kMargin ? kMargin : moved > most ? most : moved);
  }
};

class SideDecoder {
 public:
  SideDecoder() = default;
  SideDecoder(const uint8_t* bytes, size_t size) : next_(bytes), end_(bytes + size) {
    for (int i = 0; i < 4; ++i) shift_in();
  }

  bool get(AdaptiveBit& model) {
    const uint32_t middle =
        low_ + static_cast<uint32_t>((uint64_t{high_ - low_} * model.probability) >> 16);
    const bool bit = code_ <= middle;
    if (bit) {
      high_ = middle;
    } else {
      low_ = middle + 1;
    }
    while (((low_ ^ high_) >> 24) == 0) {
      low_ <<= 8;
      high_ = high_ << 8 | 255;
      shift_in();
    }
    model.update(bit);
    return bit;
  }

 private:
  void shift_in() { code_ = code_ << 8 | (next_ < end_ ? *next_++ : 0u); }

  const uint8_t *next_ = nullptr, *end_ = nullptr;
  uint32_t low_ = 0, high_ = UINT32_MAX, code_ = 0;
};

// A signed integer as adaptive bits: whether it is zero, its sign, the place of the magnitude's
// highest bit in unary, and the bits below that, the first four of them adaptive.
class AdaptiveInteger {
 public:
  static constexpr int kMax = (1 << 20) - 1;

  template <typename Encoder>
  void put(Encoder& coder, int value) {
    coder.put(zero_, value == 0);
    if (value == 0) return;
    coder.put(sign_, value < 0);
    const unsigned magnitude = static_cast<unsigned>(value < 0 ? -value : value);
    unsigned width = 0;
    while (magnitude >> width > 1) ++width;
    for (unsigned i = 0; i < width; ++i) coder.put(width_[i], true);
    if (width < kWidths) coder.put(width_[width], false);
    unsigned node = 1;
    for (unsigned i = width; i-- > 0;) {
      const bool bit = (magnitude >> i) & 1;
      AdaptiveBit even;
      coder.put(node < 16 ? tree_[width < 4 ? width : 4][node] : even, bit);
      node = 2 * node + bit;
    }
  }

  int get(SideDecoder& coder) {
    if (coder.get(zero_)) return 0;
    const bool negative = coder.get(sign_);
    unsigned width = 0;
    while (width < kWidths && coder.get(width_[width])) ++width;
    unsigned node = 1;
    for (unsigned i = width; i-- > 0;) {
      AdaptiveBit even;
      node = 2 * node + coder.get(node < 16 ? tree_[width < 4 ? width : 4][node] : even);
    }
    return negative ? -static_cast<int>(node) : static_cast<int>(node);
  }

 private:
  static constexpr unsigned kWidths = 19;
  AdaptiveBit zero_, sign_;
  AdaptiveBit width_[kWidths];
  AdaptiveBit tree_[5][16];
};

}  // namespace bf16codecs::grid
