#pragma once

// The sizes that Zstandard frames state (RFC 8878, 3.1), read before anything is decompressed:
// decompressors allocate without a limit for a frame that does not state its size.

#include <cstddef>
#include <cstdint>

#include "format/errors.h"
#include "format/little_endian.h"

namespace bf16codecs {

inline constexpr uint64_t kNoContentSize = UINT64_MAX;

struct ZstdFrame {
  uint64_t content_size = kNoContentSize;  // as stated, if at all
  size_t end = SIZE_MAX;                   // of the frame in the bytes; SIZE_MAX: not a frame
};

// The end of the blocks that begin at `at`, with the checksum after them (3.1.1.2), or SIZE_MAX.
inline size_t zstd_blocks_end(const uint8_t* frame, size_t size, size_t at) {
  constexpr unsigned kRunLengthBlock = 1;
  for (bool is_last = false; !is_last;) {
    if (size < at || size - at < 3) return SIZE_MAX;
    const unsigned block = load_le<uint16_t>(frame + at) | unsigned{frame[at + 2]} << 16;
    is_last = (block & 1) != 0;
    at += 3 + ((block >> 1 & 3) == kRunLengthBlock ? 1 : block >> 3);
  }
  const bool has_checksum = (frame[4] & 4) != 0;
  at += has_checksum ? 4 : 0;
  return at <= size ? at : SIZE_MAX;
}

// The frame at the start of the bytes. A skippable frame (3.1.2) has no content.
inline ZstdFrame zstd_frame(const uint8_t* bytes, size_t size) {
  constexpr uint32_t kZstandard = 0xFD2FB528, kSkippable = 0x184D2A50;
  constexpr size_t kDictionaryIdSizes[] = {0, 1, 2, 4};
  if (size < 5) return {};
  if ((load_le<uint32_t>(bytes) & ~15u) == kSkippable) {
    if (size < 8 || load_le<uint32_t>(bytes + 4) > size - 8) return {};
    return {0, 8 + size_t{load_le<uint32_t>(bytes + 4)}};
  }
  if (load_le<uint32_t>(bytes) != kZstandard) return {};
  const unsigned descriptor = bytes[4], size_flag = descriptor >> 6;
  const bool single_segment = (descriptor & 0x20) != 0;
  const size_t at = 5 + (single_segment ? 0 : 1) + kDictionaryIdSizes[descriptor & 3];
  const size_t width = size_flag == 0 ? (single_segment ? 1 : 0) : size_t{1} << size_flag;
  const size_t end = zstd_blocks_end(bytes, size, at + width);
  if (end == SIZE_MAX) return {};
  switch (width) {
    case 0:
      return {kNoContentSize, end};
    case 1:
      return {bytes[at], end};
    case 2:
      return {load_le<uint16_t>(bytes + at) + 256u, end};
    case 4:
      return {load_le<uint32_t>(bytes + at), end};
    default:
      return {load_le<uint64_t>(bytes + at), end};
  }
}

// Throws CorruptDataError unless the bytes are exactly one frame that states n bytes. To be checked
// before decompression, since decompressors accept several frames.
inline void check_zstd_plane(const uint8_t* payload, size_t size, size_t n) {
  const ZstdFrame frame = zstd_frame(payload, size);
  if (frame.content_size == n && frame.end == size) return;
  throw CorruptDataError("Zstandard plane: not a frame of the plane's size");
}

// The total content size of all frames, or kNoContentSize if one does not state its size, or the
// bytes are not a sequence of frames.
inline uint64_t zstd_content_size(const uint8_t* bytes, size_t size) {
  uint64_t total = 0;
  size_t at = 0;
  do {
    const ZstdFrame frame = zstd_frame(bytes + at, size - at);
    if (frame.end == SIZE_MAX || frame.content_size >= kNoContentSize - total) {
      return kNoContentSize;
    }
    total += frame.content_size;
    at += frame.end;
  } while (at < size);
  return total;
}

}  // namespace bf16codecs
