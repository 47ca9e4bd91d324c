#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "frame.h"

namespace bf16codecs {

// Zstandard, from whoever has one: the core links no libzstd.
struct Zstd {
  // Compresses n bytes to out; returns the size, or 0 if it is more than capacity.
  std::function<size_t(const uint8_t* plane, size_t n, int level, uint8_t* out, size_t capacity)>
      compress;
  // Decompresses one Zstandard frame whose content is n bytes. Throws CorruptDataError.
  std::function<void(const uint8_t* payload, size_t size, uint8_t* plane, size_t n)> decompress;
};

struct EncodeOptions {
  Codec codec = Codec::huffman;
  Layout layout;
  int level = 0;  // Zstandard's
  bool has_checksums = true;
  unsigned block_log2 = 18;
  const Zstd* zstd = nullptr;
};

// Encodes raw[0, size) to frame, which has room for frame_bound(); returns the frame's size.
size_t encode(const uint8_t* raw, size_t size, const EncodeOptions& options, uint8_t* frame);

// Decodes blocks [first, last), last > first, and with the last block the tail, to `out`, which
// has room for index.raw_size(first, last). `payload` has the frame's bytes from
// index.offsets[first] to index.offsets[last]. Throws CorruptDataError.
void decode_blocks(const FrameIndex& index, const uint8_t* payload, size_t first, size_t last,
                   const Zstd* zstd, uint8_t* out);

}  // namespace bf16codecs
