#pragma once

// Memory for the tests of the tiles mode's kernels. It ends where a kernel may touch no more.

#include <algorithm>
#include <cstring>

#include "check.h"
#include "kernels/tiles.h"

namespace bf16codecs::test {

struct TileArenas {
  static constexpr size_t kMost = 4 * kMaxTileItems + 4096;

  Arena symbols{kMost}, scales{kMost}, keys{kMost}, records{kMost}, words{kMost}, escapes{kMost};
  Arena decoded{kMost};  // symbols beside others
};

inline TileArenas& arenas() {
  static TileArenas all;
  return all;
}

// What a kernel writes: `size` bytes, after which it may overwrite `slack`, and nothing else. On
// the side without a guard, bytes tell.
class Output {
 public:
  Output(Arena& arena, size_t size, size_t slack, Against side) : size_(size) {
    const size_t room = size + slack;
    uint8_t* const begin = arena.room(room + kWatched, side);
    data_ = side == Against::front ? begin : begin + kWatched;
    watched_ = side == Against::front ? begin + room : begin;
    std::fill_n(begin, room + kWatched, kUntouched);
  }

  uint8_t* data() const { return data_; }
  Bytes bytes() const {
    const auto is_untouched = [](uint8_t byte) { return byte == kUntouched; };
    CHECK(std::all_of(watched_, watched_ + kWatched, is_untouched));
    return {data_, data_ + size_};
  }

 private:
  static constexpr size_t kWatched = 256;
  static constexpr uint8_t kUntouched = 0xA5;

  size_t size_;
  uint8_t *data_, *watched_;
};

// Stands for the order of a tile of one class, which kernels may not use.
inline const TileOrder& no_order() {
  static const TileOrder order = [] {
    TileOrder noise;
    std::memset(&noise, 0xA5, sizeof noise);
    return noise;
  }();
  return order;
}

}  // namespace bf16codecs::test
