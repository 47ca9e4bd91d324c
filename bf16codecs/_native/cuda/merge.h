#pragma once

// Merges planes into items (docs/format.md, "Element layout").

#include "cuda/strips.h"
#include "format/constants.h"

namespace bf16codecs::cuda {

// A plane in memory, or a constant symbol.
struct Plane {
  const uint8_t* symbols = nullptr;
  uint8_t constant = 0;
};

// The planes of a block, shared by the threads.
class Planes {
 public:
  BF16CODECS_DEVICE void put(unsigned p, const uint8_t* symbols, uint8_t constant = 0) {
    symbols_.store(8 * p, reinterpret_cast<uint64_t>(symbols));
    constants_.store(p, constant);
  }
  BF16CODECS_DEVICE Plane get(unsigned p) const {
    return {reinterpret_cast<const uint8_t*>(symbols_.load<uint64_t>(8 * p)),
            constants_.load<uint8_t>(p)};
  }

 private:
  Shared<8 * kMaxItemSize> symbols_;  // addresses; 0 for constant planes
  Shared<kMaxItemSize> constants_;
};

// Loads kCount symbols as a number, the first one lowest.
template <unsigned kCount>
BF16CODECS_DEVICE uint64_t some_symbols(const Plane& plane, uint32_t at) {
  if (plane.symbols == nullptr) return plane.constant * (~uint64_t{0} / 255);
  if constexpr (kCount == 8) return load_any<uint64_t>(plane.symbols + at);
  if constexpr (kCount == 4) return load_any<uint32_t>(plane.symbols + at);
  if constexpr (kCount == 2) return load_any<uint16_t>(plane.symbols + at);
  return plane.symbols[at];
}

// Assembles kCount items of kWidth bytes from item `at` on: 8 bytes, or fewer at the end.
template <unsigned kWidth, unsigned kCount>
BF16CODECS_DEVICE uint64_t merged(const Plane planes[], bool is_rotated, uint32_t at) {
  uint64_t items = 0;
  uint64_t symbols[kWidth];
  BF16CODECS_UNROLLED
  for (unsigned p = 0; p < kWidth; ++p) symbols[p] = some_symbols<kCount>(planes[p], at);
  BF16CODECS_UNROLLED
  for (unsigned i = 0; i < kCount; ++i) {
    uint64_t item = 0;
    BF16CODECS_UNROLLED
    for (unsigned p = 0; p < kWidth; ++p) item = item << 8 | (symbols[p] >> 8 * i & 255);
    const uint64_t lowest = item & 1;
    if (is_rotated) item = item >> 1 | lowest << (8 * kWidth - 1);
    items |= item << 8 * kWidth * i;
  }
  return items;
}

// Merges a block's n items. One plane may lie at the end of the items' memory: each strip's symbols
// are read before the strip is written, and writing does not overtake reading.
template <unsigned kWidth>
BF16CODECS_DEVICE void merge_width(const Warp& warp, const Planes& all, bool is_rotated, uint32_t n,
                                   Strips& strips) {
  constexpr unsigned kItems = 8 / kWidth;  // items in 8 bytes
  constexpr unsigned kStripItems = kStripBytes / kWidth;
  Plane planes[kWidth];
  BF16CODECS_UNROLLED
  for (unsigned p = 0; p < kWidth; ++p) planes[p] = all.get(p);
  for (uint32_t begin = 0; begin < n; begin += kStripItems) {
    const unsigned count = least<uint32_t>(n - begin, kStripItems);
    warp.each([&](unsigned t) {
      for (unsigned i = kItems * t; i < count; i += kItems * kThreads) {
        if (i + kItems <= count) {
          strips.strip().store(kWidth * i, merged<kWidth, kItems>(planes, is_rotated, begin + i));
          continue;
        }
        for (unsigned k = i; k < count; ++k) {
          const uint64_t item = merged<kWidth, 1>(planes, is_rotated, begin + k);
          for (unsigned byte = 0; byte < kWidth; ++byte) {
            strips.strip().store(kWidth * k + byte, static_cast<uint8_t>(item >> 8 * byte));
          }
        }
      }
    });
    strips.pass(kWidth * count);
  }
}

BF16CODECS_DEVICE void merge(const Warp& warp, const Planes& planes, unsigned width,
                             bool is_rotated, uint32_t n, Strips& strips) {
  switch (width) {
    case 1:
      return merge_width<1>(warp, planes, is_rotated, n, strips);
    case 2:
      return merge_width<2>(warp, planes, is_rotated, n, strips);
    case 4:
      return merge_width<4>(warp, planes, is_rotated, n, strips);
    default:
      return merge_width<8>(warp, planes, is_rotated, n, strips);
  }
}

}  // namespace bf16codecs::cuda
