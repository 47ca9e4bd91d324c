#pragma once

#include <cstddef>
#include <cstdint>

#include "format.h"

namespace bf16codecs {

inline constexpr uint64_t kNoContentSize = UINT64_MAX;

// The content size that a Zstandard frame states (RFC 8878, 3.1.1.1), or kNoContentSize.
inline uint64_t zstd_content_size(const uint8_t* frame, size_t size) {
  constexpr uint32_t kZstdMagic = 0xFD2FB528;
  constexpr size_t kDictionaryIdSizes[] = {0, 1, 2, 4};
  if (size < 5 || load_le<uint32_t>(frame) != kZstdMagic) return kNoContentSize;
  const unsigned descriptor = frame[4], size_flag = descriptor >> 6;
  const bool single_segment = (descriptor & 0x20) != 0;
  const size_t at = 5 + (single_segment ? 0 : 1) + kDictionaryIdSizes[descriptor & 3];
  const size_t width = size_flag == 0 ? (single_segment ? 1 : 0) : size_t{1} << size_flag;
  if (width == 0 || at + width > size) return kNoContentSize;
  switch (width) {
    case 1: return frame[at];
    case 2: return load_le<uint16_t>(frame + at) + 256u;
    case 4: return load_le<uint32_t>(frame + at);
    default: return load_le<uint64_t>(frame + at);
  }
}

}  // namespace bf16codecs
