#pragma once

// The usual block, in one pass: 16-bit items whose exponents are a plane of pairs, over a stored
// one.

#include "cuda/job.h"
#include "cuda/pairs.h"
#include "cuda/two_planes.h"

namespace bf16codecs::cuda {

struct FusedMemory {
  PairsMemory pairs;
  Window::Memory low;
  Shared<kStripBytes> strip;
};

// Decodes a block of which plane 0 has this payload; `low` is plane 1. Items begin at a multiple of
// 4 bytes. Returns the checksum of the items, if the payload is sound.
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
    // A step takes a power of two, which is in a row in the window, but for less than a quad.
    unsigned step_at = 0, low_at = 0;
    const auto reach = [&](unsigned at, unsigned symbols) {
      lows.reach(lows.begin() + at, symbols);
      step_at = at;
      low_at = (lows.begin() + at) % kWindowBytes;
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
