#pragma once

// The usual block, in one pass: 16-bit items whose exponents are a plane of pairs, over a stored
// one.

#include "cuda/job.h"
#include "cuda/pairs.h"
#include "cuda/strips.h"

namespace bf16codecs::cuda {

struct FusedMemory {
  PairsMemory pairs;
  Shared<kWindowBytes> low;
  Shared<kStripBytes> strip;
};

// Items 2 t and 2 t + 1, given their symbols and their bytes of the low plane.
BF16CODECS_DEVICE uint32_t two_items(uint32_t even, uint32_t odd, uint32_t low) {
  const uint32_t rotated = even << 8 | (low & 255) | odd << 24 | (low & 0xFF00) << 8;
  return (rotated >> 1 & 0x7FFF7FFF) | (rotated << 15 & 0x80008000);
}

// Decodes a block of which plane 0 has this payload; `low` is plane 1. Items begin at a multiple of
// 4 bytes. Returns the checksum of the items, if the payload is sound.
BF16CODECS_DEVICE bool decode_fused(const Warp& warp, FusedMemory& memory, const uint8_t* payload,
                                    uint32_t size, const uint8_t* low, uint32_t n, uint8_t* items,
                                    uint32_t& checksum) {
  PairsPayload parts;
  if (!find_parts(payload, size, n, parts)) return false;
  if (!read_slots(warp, parts, payload, memory.pairs.slots)) return false;
  Strips strips(warp, memory.strip, items);
  Window lows(warp, memory.low, low, low + n);
  const auto run = [&](const auto& states) {
    PairsReader reader(warp, memory.pairs, states, parts);
    return reader.run([&](unsigned at, const TwoSymbols& symbols) {
      lows.reach(at, kPairSymbols);
      PerThread<uint32_t> words;
      warp.each([&](unsigned t) {
        words[t] = two_items(symbols.even[t] & 255, symbols.odd[t] & 255, lows.load16(at + 2 * t));
      });
      strips.pass_words(words);
    });
  };
  const bool is_sound = parts.groups == 4   ? run(RegisterStates<4>())
                        : parts.groups == 2 ? run(RegisterStates<2>())
                                            : run(RegisterStates<1>());
  const unsigned rest = parts.rest_size, done = n - rest;
  warp.each([&](unsigned t) {
    for (unsigned i = t; i < rest; i += kThreads) {
      const unsigned rotated = unsigned{parts.rest[i]} << 8 | low[done + i];
      memory.strip.store(2 * i, static_cast<uint16_t>(rotated >> 1 | rotated << 15));
    }
  });
  strips.pass(2 * rest);
  checksum = strips.checksum();
  return is_sound;
}

}  // namespace bf16codecs::cuda
