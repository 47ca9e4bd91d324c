#pragma once

// States of lanes, for the tests of the rANS modes.

#include "check.h"
#include "kernels/lanes.h"

namespace bf16codecs::test {

struct States {
  uint32_t x[kMaxLanes];
  bool operator==(const States&) const = default;
};

inline States random_states(Random& random) {
  States states;
  for (uint32_t& x : states.x) x = static_cast<uint32_t>((1u << 16) + random.below(0xFFFF0000));
  return states;
}

}  // namespace bf16codecs::test
