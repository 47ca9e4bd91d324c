#pragma once

// 16-bit items of two planes (docs/format.md, "Element layout").

#include "cuda/strips.h"

namespace bf16codecs::cuda {

// Two items, given their symbols and their bytes of the low plane, in bytes 0 and 1.
BF16CODECS_DEVICE uint32_t two_items(uint32_t symbols, uint32_t low) {
  constexpr uint32_t kSigns = 0x80008000;
  const uint32_t rotated = pick_bytes(symbols, low, 0x1504);
  return pick_by(kSigns, rotated << 15, rotated >> 1);
}

// Passes on the last items of a block, less than a strip, given their bytes of both planes.
BF16CODECS_DEVICE void pass_two_planes(const Warp& warp, const uint8_t* high, const uint8_t* low,
                                       unsigned n, Strips& strips) {
  warp.each([&](unsigned t) {
    BF16CODECS_ROLLED
    for (unsigned i = t; i < n; i += kThreads) {
      const unsigned rotated = unsigned{high[i]} << 8 | low[i];
      strips.strip().store(2 * i, static_cast<uint16_t>(rotated >> 1 | rotated << 15));
    }
  });
  strips.pass(2 * n);
}

}  // namespace bf16codecs::cuda
