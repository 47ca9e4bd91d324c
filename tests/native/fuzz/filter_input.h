#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "core.h"

namespace bf16codecs::fuzz {

// An input of the filter's target: one byte with flags and the number of cd_values, the values, and
// the chunk.
struct FilterInput {
  FilterInput(const uint8_t* data, size_t data_size) {
    Reader in(data, data_size);
    const uint8_t flags = in.u8();
    is_decoding = (flags & 1) != 0;
    is_optional = (flags & 2) != 0;
    for (unsigned left = flags >> 2 & 7; left != 0; --left) values.push_back(in.u32());
    chunk = in.rest();
    size = in.left();
  }

  bool is_decoding, is_optional;
  std::vector<unsigned> values;
  const uint8_t* chunk;
  size_t size;
};

}  // namespace bf16codecs::fuzz
