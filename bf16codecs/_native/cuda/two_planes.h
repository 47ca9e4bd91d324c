#pragma once

// 16-bit items of two planes (docs/format.md, "Element layout").

#include "cuda/job.h"
#include "cuda/strips.h"
#include "format/constants.h"

namespace bf16codecs::cuda {

// Offsets in a block of such items, with plane 0 coded and plane 1 stored. The block's head has two
// modes, and the size of the coded plane.
inline constexpr uint32_t kUsualHead = 6;

BF16CODECS_DEVICE const uint8_t* stored_plane(const Job& job) {
  return bytes_at(job.payload) + kUsualHead;
}
BF16CODECS_DEVICE const uint8_t* coded_plane(const Job& job) {
  return stored_plane(job) + job.n;
}
BF16CODECS_DEVICE uint32_t coded_size(const Job& job) {
  return job.size - kUsualHead - job.n;
}

// Whether a job's block is of this kind, with plane 0 in `mode`.
BF16CODECS_DEVICE bool is_usual(const Warp& warp, const Job& job, Mode mode) {
  if (job.width != 2 || (job.flags & (kJobByByte | kJobBaseChecked)) != 0) return false;
  if (job.items % 4 != 0 || job.size > kMostPayload || job.size < kUsualHead + job.n) return false;
  const uint8_t* const block = bytes_at(job.payload);
  if (warp.same(block[0]) != uint8_t(mode)) return false;
  if (warp.same(block[1]) != uint8_t(Mode::stored)) return false;
  return warp.same(load_any<uint32_t>(block + 2)) == coded_size(job);
}

// Two items, from their symbols and their bytes of the low plane, each in bytes 0 and 1.
BF16CODECS_DEVICE uint32_t two_items(uint32_t symbols, uint32_t low) {
  constexpr uint32_t kSigns = 0x80008000;
  const uint32_t rotated = pick_bytes(symbols, low, 0x1504);
  return pick_by(kSigns, rotated << 15, rotated >> 1);
}

// Passes on the last items of a block, less than a strip, from their bytes of both planes.
BF16CODECS_DEVICE void pass_two_planes(const Warp& warp, const uint8_t* high, const uint8_t* low,
                                       unsigned n, Strips& strips) {
  warp.each([&](unsigned t) {
    BF16CODECS_ROLLED
    for (unsigned i = t; i < n; i += kThreads) {
      const unsigned rotated = unsigned{high[i]} << 8 | low[i];
      strips.strip().store(2 * i, static_cast<uint16_t>(rotated >> 1 | rotated << 15));
    }
  });
  strips.pass(2 * n);
}

}  // namespace bf16codecs::cuda
