#pragma once

// How eight symbols move to and from the lists of their classes, where vectors cannot expand and
// compress bytes. Each file that includes this has a copy of its own, built for its instruction set.

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

}  // namespace
}  // namespace bf16codecs
