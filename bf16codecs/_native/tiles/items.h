#pragma once

#include <cstddef>
#include <cstdint>

#include "format/layout.h"
#include "grid/keys.h"

namespace bf16codecs::tiles {

// The bits of a key below its symbol: an exponent and three bits after it are coded.
inline unsigned raw_bits(const grid::KeyFormat& format) {
  return format.fraction - 3;
}

// Items of a frame, read as keys.
class Items {
 public:
  // `items` points at the item at `first`, the first one that is there.
  Items(const Layout& layout, const uint8_t* items, uint64_t first)
      : layout_(layout), items_(items), first_(first) {}

  void load(uint64_t at, size_t n, uint16_t* keys) const {
    grid::load_keys(layout_, items_ + (at - first_) * layout_.planes(), n, keys);
  }

 private:
  Layout layout_;
  const uint8_t* items_;
  uint64_t first_;
};

}  // namespace bf16codecs::tiles
