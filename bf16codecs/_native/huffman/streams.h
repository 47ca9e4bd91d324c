#pragma once

// How a plane is divided into Huffman streams (docs/format.md, "Huffman plane").

#include <cstddef>
#include <cstdint>

#include "huffman/code.h"

namespace bf16codecs {

inline constexpr unsigned kHuffmanStreams = 8;
// Below this many symbols there is one stream: the sizes and marks of eight would cost more
// than 1.3 % (docs/design_codecs.md, "Huffman").
inline constexpr size_t kHuffmanStreamsFrom = 4096;

// Each stream has n / streams consecutive symbols, and the last one the remainder as well.
struct HuffmanLayout {
  explicit HuffmanLayout(size_t n)
      : symbols(n), streams(n < kHuffmanStreamsFrom ? 1 : kHuffmanStreams) {}

  size_t begin(unsigned stream) const { return symbols / streams * stream; }
  size_t end(unsigned stream) const { return stream + 1 == streams ? symbols : begin(stream + 1); }
  // The bytes of a stored size: two if no stream, with its mark, can have more than 65,535 bytes.
  size_t size_width() const { return longest() * kMaxCodeLength / 8 < UINT16_MAX ? 2 : 4; }
  // The symbols of the last stream.
  size_t longest() const { return symbols - begin(streams - 1); }
  // The bytes of all stored sizes. That of the last stream is not stored: it is the rest of the
  // payload.
  size_t sizes_bytes() const { return (streams - 1) * size_width(); }

  size_t symbols;
  unsigned streams;
};

}  // namespace bf16codecs
