#pragma once

// Adaptive binary range coding of side information: the few numbers that describe a section or a
// block (docs/format_scale.md, "Adaptive integers").

#include <cstdint>
#include <utility>
#include <vector>

#include "grid/adaptive_integer.h"

namespace bf16codecs::grid {

// The encoder of adaptive bits. Between bits, the top bytes of low_ and high_ differ: where they
// agree, that byte is final and is put out.
class SideEncoder {
 public:
  void put(AdaptiveBit& model, bool bit) {
    split(model.probability, bit);
    model.update(bit);
  }

  // Ends the stream with one byte, or none: a decoder reads zeros after the end. The byte above
  // that of low_, followed by zeros, is above low_ and, as the top bytes differ, not above high_.
  std::vector<uint8_t> finish() {
    if (low_ != 0) bytes_.push_back(static_cast<uint8_t>((low_ >> 24) + 1));
    return std::move(bytes_);
  }

 private:
  void split(unsigned probability, bool bit) {
    const uint32_t middle =
        low_ + static_cast<uint32_t>((uint64_t{high_ - low_} * probability) >> 16);
    if (bit) {
      high_ = middle;
    } else {
      low_ = middle + 1;
    }
    while (((low_ ^ high_) >> 24) == 0) {
      bytes_.push_back(static_cast<uint8_t>(high_ >> 24));
      low_ <<= 8;
      high_ = high_ << 8 | 255;
    }
  }

  uint32_t low_ = 0, high_ = UINT32_MAX;
  std::vector<uint8_t> bytes_;
};

}  // namespace bf16codecs::grid
