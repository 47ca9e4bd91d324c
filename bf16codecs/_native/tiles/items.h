#pragma once

// Items of the tiles mode as keys (docs/format_tiles.md, "Symbols and raw bits").

#include <cstddef>
#include <cstdint>

#include "format/layout.h"
#include "grid/keys.h"

namespace bf16codecs::tiles {

// R, the bits of a key below its symbol: the exponent and three bits after it make the symbol.
inline unsigned raw_bits(const grid::KeyFormat& format) {
  return format.fraction - 3;
}

// Items of a frame, read as keys; with a base, their distances from it.
class Items {
 public:
  // `items` and `base` point at item `first`, the first one in memory.
  Items(const Layout& layout, const uint8_t* items, uint64_t first, const uint8_t* base = nullptr)
      : layout_(layout), items_(items), base_(base), first_(first) {}

  void load(uint64_t at, size_t n, uint16_t* keys) const {
    const uint64_t from = (at - first_) * layout_.planes();
    if (base_ == nullptr) return grid::load_keys(layout_, items_ + from, n, keys);
    grid::load_difference_keys(layout_, base_ + from, items_ + from, n, keys);
  }

 private:
  Layout layout_;
  const uint8_t *items_, *base_;
  uint64_t first_;
};

}  // namespace bf16codecs::tiles
