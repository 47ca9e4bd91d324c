#pragma once

// Rows of bytes, copied from where they are at one distance to where they are at another.

#include "cuda/warp.h"

namespace bf16codecs::cuda {

// What a warp copies of a row before it takes another part: few and long rows have several.
inline constexpr uint64_t kRowPart = 4096;

struct RowCopy {
  uint64_t size;   // bytes of each
  uint64_t count;  // how many there are
  uint64_t to_pitch, from_pitch;
};

// Bytes at any addresses, which do not overlap: written in words, which are whole lines.
BF16CODECS_DEVICE void copy_run(const Warp& warp, uint8_t* to, const uint8_t* from, uint64_t size) {
  constexpr uint64_t kWord = sizeof(uint32_t);
  const uint64_t before = least((~reinterpret_cast<uintptr_t>(to) + 1) % kWord, size);
  const uint64_t after = (size - before) % kWord, end = size - after;
  constexpr uint64_t kRow = kWord * kThreads;
  constexpr unsigned kAtATime = 4;  // rows, all of which are loaded before one is stored
  warp.each([&](unsigned t) {
    if (t < before) to[t] = from[t];
    for (uint64_t i = before + kWord * t; i < end; i += kAtATime * kRow) {
      uint32_t words[kAtATime];
      BF16CODECS_UNROLLED
      for (unsigned k = 0; k < kAtATime; ++k) {
        words[k] = i + kRow * k < end ? load_any<uint32_t>(from + i + kRow * k) : 0;
      }
      BF16CODECS_UNROLLED
      for (unsigned k = 0; k < kAtATime; ++k) {
        if (i + kRow * k < end) store_aligned(to + i + kRow * k, words[k]);
      }
    }
    if (t < after) to[size - after + t] = from[size - after + t];
  });
}

// The parts that warp `first` of `warps` has.
BF16CODECS_DEVICE void copy_rows(const Warp& warp, uint64_t first, uint64_t warps, uint8_t* to,
                                 const uint8_t* from, const RowCopy& rows) {
  const uint64_t parts = (rows.size + kRowPart - 1) / kRowPart;
  for (uint64_t i = first; i < parts * rows.count; i += warps) {
    const uint64_t row = i / parts, at = i % parts * kRowPart;
    copy_run(warp, to + row * rows.to_pitch + at, from + row * rows.from_pitch + at,
             least(rows.size - at, kRowPart));
  }
}

}  // namespace bf16codecs::cuda
