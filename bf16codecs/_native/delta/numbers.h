#pragma once

// Items as classes and coded numbers (docs/format_differences.md, "Numbers").

#include <cstddef>
#include <cstdint>

#include "delta/model.h"

namespace bf16codecs::delta {

class Numbers {
 public:
  Numbers(const Layout& layout, const Section& section) : layout_(layout), section_(section) {}

  // Finds the classes of n items, by those of the base and by their scales.
  void classify(const uint8_t* base, const uint16_t* scales, size_t n, uint8_t* classes) const;

  // Makes the coded numbers of n items in these classes, 65535 if they are larger, and the low
  // bytes.
  void subtract(const uint8_t* base, const uint8_t* items, const uint16_t* scales,
                const uint8_t* classes, size_t n, uint16_t* numbers, uint8_t* const low[]) const;

  // Makes items of numbers. `items` may be `base`.
  void add(const uint8_t* base, const uint16_t* numbers, const uint16_t* scales,
           const uint8_t* classes, const uint8_t* const low[], size_t n, uint8_t* items) const;

 private:
  // Whether there are kernels for these items and this relation.
  bool is_usual16() const {
    return layout_.planes() == 2 && section_.relation == Relation::ordered && section_.low == 0;
  }

  const Layout& layout_;
  const Section& section_;
};

}  // namespace bf16codecs::delta
