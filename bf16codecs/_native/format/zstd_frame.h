#pragma once

#include <cstddef>
#include <cstdint>

#include "format/little_endian.h"

namespace bf16codecs {

inline constexpr uint64_t kNoContentSize = UINT64_MAX;

// Where the Zstandard frame whose blocks begin at `at` ends (RFC 8878, 3.1.1.2), or SIZE_MAX.
inline size_t zstd_frame_end(const uint8_t* frame, size_t size, size_t at) {
  constexpr unsigned kRunLengthBlock = 1;
  for (bool is_last = false; !is_last;) {
    if (size < at || size - at < 3) return SIZE_MAX;
    const unsigned block = load_le<uint16_t>(frame + at) | unsigned{frame[at + 2]} << 16;
    is_last = (block & 1) != 0;
    at += 3 + ((block >> 1 & 3) == kRunLengthBlock ? 1 : block >> 3);
  }
  const bool has_checksum = (frame[4] & 4) != 0;
  return at + (has_checksum ? 4 : 0);
}

// The content size that a Zstandard frame states (RFC 8878, 3.1.1.1), or kNoContentSize: if it
// states none, or if the bytes are anything but one frame. Decompressors would take several.
inline uint64_t zstd_content_size(const uint8_t* frame, size_t size) {
  constexpr uint32_t kZstdMagic = 0xFD2FB528;
  constexpr size_t kDictionaryIdSizes[] = {0, 1, 2, 4};
  if (size < 5 || load_le<uint32_t>(frame) != kZstdMagic) return kNoContentSize;
  const unsigned descriptor = frame[4], size_flag = descriptor >> 6;
  const bool single_segment = (descriptor & 0x20) != 0;
  const size_t at = 5 + (single_segment ? 0 : 1) + kDictionaryIdSizes[descriptor & 3];
  const size_t width = size_flag == 0 ? (single_segment ? 1 : 0) : size_t{1} << size_flag;
  if (width == 0 || zstd_frame_end(frame, size, at + width) != size) return kNoContentSize;
  switch (width) {
    case 1: return frame[at];
    case 2: return load_le<uint16_t>(frame + at) + 256u;
    case 4: return load_le<uint32_t>(frame + at);
    default: return load_le<uint64_t>(frame + at);
  }
}

}  // namespace bf16codecs
