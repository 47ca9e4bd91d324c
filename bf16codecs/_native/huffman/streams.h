#pragma once

#include <cstddef>
#include <cstdint>

#include "huffman/code.h"

namespace bf16codecs {

inline constexpr unsigned kHuffmanStreams = 8;
// Below this many symbols, eight streams' sizes cost more than they save in time.
inline constexpr size_t kHuffmanStreamsFrom = 4096;

// How a plane of n symbols is dealt out: n / streams symbols to each stream in turn, the rest to
// the last.
struct HuffmanLayout {
  explicit HuffmanLayout(size_t n)
      : symbols(n), streams(n < kHuffmanStreamsFrom ? 1 : kHuffmanStreams) {}

  size_t begin(unsigned stream) const { return symbols / streams * stream; }
  size_t end(unsigned stream) const { return stream + 1 == streams ? symbols : begin(stream + 1); }
  // Bytes of a stored size: two if no stream can be larger than 65,535 bytes.
  size_t size_width() const {
    const size_t longest = symbols - begin(streams - 1);
    return longest * kMaxCodeLength / 8 < UINT16_MAX ? 2 : 4;
  }
  // The last stream's size is what is left of the payload.
  size_t sizes_bytes() const { return (streams - 1) * size_width(); }

  size_t symbols;
  unsigned streams;
};

}  // namespace bf16codecs
