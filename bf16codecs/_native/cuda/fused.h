#pragma once

// The usual block, in one pass: 16-bit items whose plane 0, of exponents, is coded in pairs, and
// whose plane 1 is stored.

#include "cuda/job.h"
#include "cuda/pairs.h"
#include "cuda/two_planes.h"

namespace bf16codecs::cuda {

struct FusedMemory {
  PairsMemory pairs;
  Window::Memory low;
  Shared<kStripBytes> strip;
};

// Decodes a block with this payload of plane 0; `low` is plane 1. The address of the items is a
// multiple of 4. Sets the checksum of the items if the payload is valid.
BF16CODECS_DEVICE bool decode_fused(const Warp& warp, FusedMemory& memory, const uint8_t* payload,
                                    uint32_t size, const uint8_t* low, uint32_t n, uint8_t* items,
                                    uint32_t& checksum) {
  PairsPayload parts;
  if (!find_parts(warp, payload, size, n, parts)) return false;
  if (!read_slots(warp, parts, payload, memory.pairs.slots)) return false;
  Strips strips(warp, memory.strip, items);
  Window lows(warp, memory.low, low, low + n);
  const auto run = [&](const auto& states) {
    PairsReader reader(warp, memory.pairs, states, parts);
    // The low bytes of a step are a power of two, so they are contiguous in the window except for
    // less than a quad.
    unsigned step_at = 0, low_at = 0;
    const auto reach = [&](unsigned at, unsigned symbols) {
      lows.reach(lows.begin() + at, symbols);
      step_at = at;
      low_at = (lows.begin() + at) % Window::kBytes;
    };
    return reader.run(reach, [&](unsigned at, const Symbols& symbols) {
      PerThread<uint32_t> words;
      warp.each([&](unsigned t) {
        words[t] = two_items(symbols[t], lows.load16(low_at + (at - step_at) + 2 * t));
      });
      strips.pass_words(words);
    });
  };
  const bool is_sound = parts.groups == 4   ? run(RegisterStates<4>())
                        : parts.groups == 2 ? run(RegisterStates<2>())
                                            : run(RegisterStates<1>());
  pass_two_planes(warp, parts.rest, low + (n - parts.rest_size), parts.rest_size, strips);
  checksum = strips.checksum();
  return is_sound;
}

}  // namespace bf16codecs::cuda
