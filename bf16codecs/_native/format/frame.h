#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "format/constants.h"
#include "format/layout.h"

namespace bf16codecs {

// The header of a frame, and sizes and offsets that follow from it.
struct Header {
  uint8_t version = kFirstVersion;
  Codec codec = Codec::split;
  Layout layout;
  unsigned block_log2 = 0;
  bool has_checksums = true;
  bool has_model = false;
  bool has_differences = false;
  uint16_t versions = 1;
  uint32_t model_size = 0;
  uint64_t raw_size = 0;
  uint64_t base_digest = 0;  // of a base outside of the frame

  size_t width() const { return layout.planes(); }
  size_t block_items() const { return size_t{1} << block_log2; }
  uint64_t items() const { return raw_size / width(); }
  size_t tail_size() const { return static_cast<size_t>(raw_size % width()); }
  uint64_t version_items() const { return items() / versions; }
  uint64_t version_blocks() const {
    return version_items() / block_items() + (version_items() % block_items() != 0);
  }
  uint64_t blocks() const { return versions * version_blocks(); }
  // The version of a block, and its first item, counted in its version and over all versions.
  size_t version_of(uint64_t block) const { return static_cast<size_t>(block / version_blocks()); }
  uint64_t first_in_version(uint64_t block) const {
    return block % version_blocks() * block_items();
  }
  uint64_t first_item(uint64_t block) const {
    if (versions == 1) return std::min<uint64_t>(block * block_items(), items());
    return version_of(block) * version_items() + first_in_version(block);
  }
  bool needs_base() const { return has_differences && versions == 1; }
  size_t table_entry() const { return 4 + (has_checksums ? 4u : 0u) + (needs_base() ? 4u : 0u); }
  size_t base_at() const { return kHeaderSize + (has_model ? kModelSizeField : 0); }
  size_t table_at() const { return base_at() + (has_differences ? kBaseField : 0); }
  uint64_t head_size() const {
    return table_at() + blocks() * table_entry() + tail_size() + model_size;
  }
};

// The parent and the model of a version.
struct Version {
  uint16_t parent = kNoParent;  // a version of the frame; 0 for a base outside of the frame
  ModelKind kind = ModelKind::none;
  std::vector<uint8_t> model;

  bool has_base() const { return parent != kNoParent; }
};

// A frame's head: header, block table, tail and model.
struct FrameIndex {
  Header header;
  std::vector<uint64_t> offsets;         // of each block in the frame; then the frame's size
  std::vector<uint32_t> checksums;       // of each block's decoded bytes, or empty
  std::vector<uint32_t> base_checksums;  // of each block of a base outside of the frame
  std::vector<uint8_t> tail;
  // The model of all blocks; empty without one, and if `versions` have the models.
  std::vector<uint8_t> model;
  std::vector<Version> versions;  // of a frame with differences

  size_t blocks() const { return offsets.size() - 1; }
  uint64_t frame_size() const { return offsets.back(); }
  // Items and decoded bytes of blocks [first, last). The last block's bytes include the tail.
  size_t items(size_t first, size_t last) const;
  size_t raw_size(size_t first, size_t last) const;
};

// The block size in items, as a logarithm, for items of `width` bytes; the default if `block_items`
// is 0. Throws std::invalid_argument unless it is a power of two within the limits.
unsigned block_log2_for(size_t block_items, size_t width);

// The largest frame of `raw_size` bytes; if `versions` != 0, the largest with differences.
uint64_t frame_bound(uint64_t raw_size, size_t width, unsigned block_log2, uint16_t versions = 0);

// The frame's model, made of the models of its versions.
std::vector<uint8_t> write_versions(const std::vector<Version>& versions);

// Throws UnsupportedVersionError or CorruptDataError unless the bytes may begin a frame, judged by
// as much of magic and version as they contain.
void check_magic_and_version(const uint8_t* bytes, size_t size);

// Reads a header from the first bytes of a frame. Throws UnsupportedVersionError,
// CorruptDataError, or TruncatedDataError if the bytes end within the header.
Header read_header(const uint8_t* bytes, size_t size);

// Reads a whole head from the first `size` bytes of a frame, at least head_size() of them.
FrameIndex read_index(const uint8_t* bytes, size_t size);

// Throws TruncatedDataError or CorruptDataError unless `size` is the frame's size.
void check_frame_size(const FrameIndex& index, uint64_t size);

// Writes header, table, tail and model to the first bytes of a frame.
void write_head(const FrameIndex& index, uint8_t* frame);

}  // namespace bf16codecs
