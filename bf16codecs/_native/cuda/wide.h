#pragma once

// The wide mode (docs/format.md, "rANS plane, wide").

#include "cuda/lanes.h"
#include "cuda/warp.h"
#include "cuda/window.h"

namespace bf16codecs::cuda {

inline constexpr unsigned kWideSlots = 4096;
inline constexpr unsigned kWideBitmap = 32;

struct WideMemory {
  Shared<kWideSlots> symbols;   // of each slot
  Shared<4 * 256> frequencies;  // of each symbol; the upper half is the symbol's first slot
  Window::Memory words;
  SharedStates::Memory states;
  Shared<kMaxLanes> step;  // symbols of the current step
};

// Reads bitmap and frequencies; returns the end of the table, or null if it is invalid.
BF16CODECS_DEVICE const uint8_t* read_wide_table(const Warp& warp, WideMemory& memory,
                                                 const uint8_t* p, const uint8_t* end) {
  if (end - p < static_cast<ptrdiff_t>(kWideBitmap)) return nullptr;
  const uint8_t* const bitmap = p;
  p += kWideBitmap;
  uint32_t start = 0;
  unsigned distinct = 0;
  for (unsigned s = 0; s < 256; ++s) {
    if ((warp.same(bitmap[s / 8]) >> s % 8 & 1) == 0) continue;
    ++distinct;
    if (p == end) return nullptr;
    uint32_t frequency = warp.same(*p++) + 1u;
    if (frequency > 128) {
      if (p == end) return nullptr;
      frequency = frequency - 128 + 128u * warp.same(*p++);
      if (frequency <= 128) return nullptr;
    }
    if (frequency > kWideSlots - start) return nullptr;
    warp.once([&] { memory.frequencies.store(4 * s, frequency | start << 16); });
    warp.each([&](unsigned t) {
      for (uint32_t i = t; i < frequency; i += kThreads) {
        memory.symbols.store(start + i, static_cast<uint8_t>(s));
      }
    });
    start += frequency;
  }
  warp.sync();
  return start == kWideSlots && distinct >= 2 ? p : nullptr;
}

BF16CODECS_DEVICE void decode_wide_group(const Warp& warp, WideMemory& memory, SharedStates& states,
                                         unsigned g) {
  warp.each([&](unsigned t) {
    const uint32_t x = states.get(g, t), slot = x % kWideSlots;
    const auto symbol = memory.symbols.load<uint8_t>(slot);
    const auto of = memory.frequencies.load<uint32_t>(4 * symbol);
    states.set(g, t, (of & 0xFFFF) * (x / kWideSlots) + slot - (of >> 16));
    memory.step.store(kLanesPerGroup * g + lane_place(t), symbol);
  });
}

// Decodes a payload to a plane of n symbols; returns false if it is invalid.
BF16CODECS_DEVICE bool decode_wide(const Warp& warp, WideMemory& memory, const uint8_t* payload,
                                   uint32_t size, uint8_t* plane, uint32_t n) {
  if (size < 1) return false;
  const unsigned head = warp.same(payload[0]);
  if (head > 2) return false;
  const unsigned groups = 1u << head, lanes = kLanesPerGroup * groups;
  const unsigned steps = n / lanes, rest = n % lanes;
  const uint8_t* const end = payload + size;
  const uint8_t* p = read_wide_table(warp, memory, payload + 1, end);
  if (p == nullptr || end - p < static_cast<ptrdiff_t>(4 + 4 * lanes + rest)) return false;
  const uint64_t words = warp.same(load_any<uint32_t>(p));
  const uint8_t* const first = p + 4;
  p = first + 4 * lanes;
  if (static_cast<uint64_t>(end - p) != 2 * words + rest) return false;
  Lanes reader(warp, memory.words, SharedStates(memory.states, groups), p, end - rest);
  if (!reader.read_states(first)) return false;
  for (unsigned step = 0; step < steps; ++step, plane += lanes) {
    reader.prepare(groups);
    for (unsigned g = 0; g < groups; ++g) {
      decode_wide_group(warp, memory, reader.states, g);
      reader.renormalize(g);
    }
    warp.sync();
    const bool is_aligned = reinterpret_cast<uintptr_t>(plane) % 4 == 0;
    warp.each([&](unsigned t) {
      if (!is_aligned) {
        for (unsigned i = t; i < lanes; i += kThreads) plane[i] = memory.step.load<uint8_t>(i);
      } else if (4 * t < lanes) {
        store_aligned(plane + 4 * t, memory.step.load<uint32_t>(4 * t));
      }
    });
    warp.sync();
  }
  warp.each([&](unsigned t) {
    for (unsigned i = t; i < rest; i += kThreads) plane[i] = (end - rest)[i];
  });
  return reader.is_finished(static_cast<uint32_t>(2 * words));
}

}  // namespace bf16codecs::cuda
