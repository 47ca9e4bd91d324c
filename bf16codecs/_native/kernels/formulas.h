#pragma once

// The kinds of items of the grid mode (docs/format_grids.md, "Items").

#include <cstdint>

namespace bf16codecs {

// How an item is made of a level, a scale and, but for products, an offset. Where it says rounded,
// products are rounded to what items are rounded to first, as the differences are.
enum class Formula : uint8_t { product, sum, rounded_sum, difference };

// What a product of level and scale is rounded to; the last two, to one and then to the other.
enum class Precision : uint8_t {
  binary32,
  binary16,
  bfloat16,
  binary16_bfloat16,
  bfloat16_binary16
};

// What products and differences are rounded to before an offset or a scale is used.
constexpr Precision half(Precision precision) {
  return precision == Precision::binary16_bfloat16   ? Precision::binary16
         : precision == Precision::bfloat16_binary16 ? Precision::bfloat16
                                                     : precision;
}

// What an item is stored as.
enum class Container : uint8_t { bfloat16, float16, float32 };

}  // namespace bf16codecs
