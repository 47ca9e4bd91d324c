#include "hdf5/settings.h"

#include <stdexcept>
#include <string>

#include "format/frame.h"

namespace bf16codecs {
namespace {

// Positions in cd_values.
constexpr size_t kCodecAt = 0, kDTypeAt = 1, kFlagsAt = 2, kLevelAt = 3, kChunkSizeAt = 4,
                 kRowAt = 5, kKnownValues = 6;

constexpr unsigned kByByteFlag = 1, kNoChecksumsFlag = 2, kKnownFlags = 3;

[[noreturn]] void refuse(size_t at, unsigned value, const char* reason) {
  throw std::invalid_argument("cd_values[" + std::to_string(at) + "] is " + std::to_string(value) +
                              ": " + reason);
}

Codec codec_from(unsigned value) {
  switch (value) {
    case 0: return Codec::huffman;
    case 1: return Codec::split;
    case 2: return Codec::huffman;
    case 3: return Codec::arithmetic;
    case 4: refuse(kCodecAt, value, "Zstandard is HDF5's filter 32015, after shuffle");
    default: refuse(kCodecAt, value, "the codec is 1 (split), 2 (Huffman) or 3 (arithmetic)");
  }
}

}  // namespace

size_t hdf5_chunk_size(size_t n_values, const unsigned values[]) {
  return n_values > kChunkSizeAt ? values[kChunkSizeAt] : 0;
}

EncodeOptions hdf5_settings(size_t n_values, const unsigned values[]) {
  const auto at = [&](size_t i) { return i < n_values ? values[i] : 0; };
  EncodeOptions options;
  options.codec = codec_from(at(kCodecAt));
  if (at(kDTypeAt) >= kDTypes) refuse(kDTypeAt, at(kDTypeAt), "the element layout is 0 to 5");
  options.layout.dtype = static_cast<DType>(at(kDTypeAt));
  const unsigned flags = at(kFlagsAt);
  if ((flags & ~kKnownFlags) != 0) refuse(kFlagsAt, flags, "there are flags 1 and 2 only");
  if ((flags & kByByteFlag) != 0 && options.codec != Codec::split) {
    refuse(kFlagsAt, flags, "only codec 1 splits by bytes");
  }
  options.block_log2 = block_log2_for(0, options.layout.planes());
  options.layout.by_byte = (flags & kByByteFlag) != 0;
  options.has_checksums = (flags & kNoChecksumsFlag) == 0;
  const bool has_levels = options.codec == Codec::arithmetic;
  if (at(kLevelAt) > static_cast<unsigned>(has_levels ? kBest : kFast)) {
    refuse(kLevelAt, at(kLevelAt), has_levels ? "the level is 0 (fast) or 1 (best)"
                                              : "only codec 3 has levels");
  }
  options.level = static_cast<int>(at(kLevelAt));
  options.row = at(kRowAt);
  for (size_t i = kKnownValues; i < n_values; ++i) {
    if (values[i] != 0) refuse(i, values[i], "unknown: a newer release may know it");
  }
  return options;
}

}  // namespace bf16codecs
