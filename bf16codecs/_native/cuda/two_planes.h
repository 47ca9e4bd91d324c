#pragma once

// 16-bit items of two planes (docs/format.md, "Element layout").

#include "cuda/job.h"
#include "cuda/strips.h"
#include "cuda/window.h"
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
// Where plane 0 is decoded to if another kernel merges the planes: the end of the items' memory.
BF16CODECS_DEVICE uint8_t* decoded_plane(const Job& job) {
  return reinterpret_cast<uint8_t*>(job.items) + job.n;
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

// Whether both planes of a job's block are stored: plane 1, and plane 0 behind it.
BF16CODECS_DEVICE bool is_stored(const Warp& warp, const Job& job) {
  if (job.width != 2 || (job.flags & (kJobByByte | kJobBaseChecked)) != 0) return false;
  if (job.items % 4 != 0 || job.size > kMostPayload || job.size != 2 + 2 * job.n) return false;
  const uint8_t* const block = bytes_at(job.payload);
  return warp.same(load_any<uint16_t>(block)) ==
         (unsigned{uint8_t(Mode::stored)} << 8 | uint8_t(Mode::stored));
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

// Merging waits for memory alone: with one quad of each thread, it moved 3.1 of an H200's 4.3 TB/s.
using MergeWindow = WindowOf<2>;

struct MergeMemory {
  MergeWindow::Memory high, low;
  Shared<kStripBytes> strip;
};

// Merges the planes of n items, at an address that is a multiple of 4; returns the items' checksum.
// Plane 0, `high`, may be at the end of the items' memory: writing does not overtake reading.
BF16CODECS_DEVICE uint32_t merge_two_planes(const Warp& warp, MergeMemory& memory,
                                            const uint8_t* high, const uint8_t* low, uint32_t n,
                                            uint8_t* items) {
  constexpr unsigned kStep = 256;  // the rest fits a strip
  constexpr unsigned kGroup = 2 * kThreads;
  Strips strips(warp, memory.strip, items);
  MergeWindow highs(warp, memory.high, high, high + n);
  MergeWindow lows(warp, memory.low, low, low + n);
  const uint32_t whole = n - n % kStep;
  for (uint32_t at = 0; at < whole; at += kStep) {
    highs.reach(highs.begin() + at, kStep);
    lows.reach(lows.begin() + at, kStep);
    const unsigned high_at = (highs.begin() + at) % MergeWindow::kBytes;
    const unsigned low_at = (lows.begin() + at) % MergeWindow::kBytes;
    BF16CODECS_UNROLLED
    for (unsigned i = 0; i < kStep; i += kGroup) {
      PerThread<uint32_t> words;
      warp.each([&](unsigned t) {
        const unsigned of_thread = i + 2 * t;
        words[t] = two_items(highs.load16(high_at + of_thread), lows.load16(low_at + of_thread));
      });
      strips.pass_words(words);
    }
  }
  pass_two_planes(warp, high + whole, low + whole, n - whole, strips);
  return strips.checksum();
}

}  // namespace bf16codecs::cuda
