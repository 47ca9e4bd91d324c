#pragma once

// Copies rows of bytes between memories with different pitches.

#include "cuda/warp.h"

namespace bf16codecs::cuda {

// Bytes of a part, which a warp copies at a time: long rows have several parts.
inline constexpr uint64_t kRowPart = 4096;

struct RowCopy {
  uint64_t size;   // bytes of a row
  uint64_t count;  // number of rows
  uint64_t to_pitch, from_pitch;
};

// Copies bytes between any addresses that do not overlap. Writes are words, in whole lines.
BF16CODECS_DEVICE void copy_bytes(const Warp& warp, uint8_t* to, const uint8_t* from,
                                  uint64_t size) {
  constexpr uint64_t kWord = sizeof(uint32_t);
  const uint64_t before = least((~reinterpret_cast<uintptr_t>(to) + 1) % kWord, size);
  const uint64_t after = (size - before) % kWord, end = size - after;
  constexpr uint64_t kRow = kWord * kThreads;
  constexpr unsigned kAtATime = 4;  // rows of words: all are loaded before the first is stored
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

// Copies the parts of warp `first` of `warps`.
BF16CODECS_DEVICE void copy_rows(const Warp& warp, uint64_t first, uint64_t warps, uint8_t* to,
                                 const uint8_t* from, const RowCopy& rows) {
  const uint64_t parts = (rows.size + kRowPart - 1) / kRowPart;
  for (uint64_t i = first; i < parts * rows.count; i += warps) {
    const uint64_t row = i / parts, at = i % parts * kRowPart;
    copy_bytes(warp, to + row * rows.to_pitch + at, from + row * rows.from_pitch + at,
               least(rows.size - at, kRowPart));
  }
}

}  // namespace bf16codecs::cuda
