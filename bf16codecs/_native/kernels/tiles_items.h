#pragma once

// How eight symbols move to and from the lists of their classes, where vectors cannot expand and
// compress bytes, and how a kernel is chosen by the raw bits. Each file that includes this has a
// copy of its own, built for its instruction set.

#include <type_traits>

#include "kernels/tiles_escapes.h"

namespace bf16codecs {
namespace {

// Byte j of expand[m]: how many bits of m are set below bit j, or 128 where that is not set; of
// compress[m]: the place of the j-th bit that is set.
struct ByteTables {
  uint8_t expand[256][8], compress[256][8];
};

constexpr ByteTables make_byte_tables() {
  ByteTables tables{};
  for (unsigned m = 0; m < 256; ++m) {
    unsigned rank = 0;
    for (unsigned j = 0; j < 8; ++j) {
      const bool is_set = (m >> j & 1) != 0;
      tables.expand[m][j] = is_set ? static_cast<uint8_t>(rank) : 128;
      if (is_set) tables.compress[m][rank++] = static_cast<uint8_t>(j);
    }
  }
  return tables;
}

constexpr ByteTables kByteTables = make_byte_tables();

// Calls a kernel with the number of raw bits, of those that dtypes have, as a constant; with any
// other, what takes them all.
template <typename Kernel, typename Other>
auto with_raw_bits(unsigned raw_bits, Kernel kernel, Other other) {
  switch (raw_bits) {
    case 0:
      return kernel(std::integral_constant<unsigned, 0>());
    case 1:
      return kernel(std::integral_constant<unsigned, 1>());
    case 2:
      return kernel(std::integral_constant<unsigned, 2>());
    case 5:
      return kernel(std::integral_constant<unsigned, 5>());
    case 8:
      return kernel(std::integral_constant<unsigned, 8>());
    default:
      return other();
  }
}

}  // namespace
}  // namespace bf16codecs
