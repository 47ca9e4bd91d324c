#pragma once

// Memory for the tests of the tiles mode's kernels. It ends where a kernel may touch no more.

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
