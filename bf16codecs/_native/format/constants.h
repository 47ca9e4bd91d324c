#pragma once

// All widths and limits of the stream format (docs/format.md).

#include <cstddef>
#include <cstdint>

namespace bf16codecs {

inline constexpr uint8_t kMagic[4] = {0xBF, 0x16, 0xC0, 0xDE};
// The newest version. Frames that do not need its features have the first version.
inline constexpr uint8_t kFirstVersion = 1, kFormatVersion = 2;

inline constexpr size_t kHeaderSize = 24;     // from the magic to the checksum of the table
inline constexpr size_t kHeaderChecked = 16;  // bytes that the header's checksum covers
inline constexpr size_t kModelSizeField = 8;  // follows the header of frames with a model
inline constexpr size_t kBaseField = 16;      // follows that, in frames with differences

inline constexpr unsigned kMinBlockLog2 = 8;
inline constexpr size_t kMaxBlockBytes = size_t{1} << 22;
// 512 KiB: a block and its planes fit a 1 MiB second-level cache, and the states of 128 lanes cost
// 0.008 bits for each bfloat16 item (docs/design_codecs.md, "Lanes and block size").
inline constexpr size_t kDefaultBlockBytes = size_t{1} << 19;

enum class Codec : uint8_t { split = 1, huffman = 2, arithmetic = 3, zstd = 4 };

enum class DType : uint8_t {
  bfloat16 = 0,
  float16 = 1,
  float32 = 2,
  float64 = 3,
  float8_e4m3fn = 4,
  float8_e5m2 = 5
};
inline constexpr unsigned kDTypes = 6;
inline constexpr size_t kMaxItemSize = 8;

constexpr size_t item_size(DType dtype) {
  constexpr size_t sizes[kDTypes] = {2, 2, 4, 8, 1, 1};
  return sizes[static_cast<size_t>(dtype)];
}

enum class Mode : uint8_t {
  stored = 0,
  constant = 1,
  huffman = 2,
  rans_pairs = 3,
  rans_wide = 4,
  zstd = 5,
  scale = 6,        // the scale model's payload, for this plane and the next
  joined = 7,       // no payload: decoded with the plane before
  tiles = 8,        // the tile model's payload, likewise; version 2
  same = 9,         // no payload: all planes are the base's; version 2
  difference = 10,  // to the base, of this plane and those joined to it; version 2
  sparse = 11,      // the symbols of items that are not zero; version 2
  grid = 12,        // of all planes: levels times scales; version 2
};
inline constexpr unsigned kModes = 13;
constexpr bool is_coded(Mode mode) {
  return mode >= Mode::huffman && mode != Mode::joined && mode != Mode::same;
}

// The kind of model of a version in a frame with differences.
enum class ModelKind : uint8_t { none = 0, difference = 1, tiles = 2 };
inline constexpr unsigned kModelKinds = 3;
inline constexpr size_t kVersionEntry = 7;  // entry of the table of versions: parent, kind, size
inline constexpr uint16_t kNoParent = 65535;

// Growing frames (docs/format_growing.md), to which versions are appended.
inline constexpr uint8_t kGrowingCodec = 16;  // in place of a codec
inline constexpr size_t kGrowingHeader = 32, kGrowingEntry = 16;
inline constexpr uint8_t kNotThere = 255;  // fills missing versions

inline constexpr size_t kChecksumStripe = 128;

}  // namespace bf16codecs
