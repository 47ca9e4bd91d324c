#pragma once

// Encoding and decoding of one block (docs/format.md, "Block"; docs/format_differences.md,
// "Blocks").

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "format/constants.h"
#include "options.h"
#include "workspace.h"

namespace bf16codecs {

class Checksum;
namespace delta {
class Model;
}
namespace quantized {
struct Found;
}
namespace scale {
class Model;
}
namespace tiles {
class Model;
}

// One plane of an encoded block.
struct PlaneView {
  Mode mode;
  const uint8_t* payload;
  size_t size;
};

// Finds the planes of a block of n items; a same block has none. Throws CorruptDataError.
void parse_block(size_t width, size_t n, const uint8_t* block, size_t size, PlaneView planes[]);

// The largest encoding of a block of n items.
inline size_t block_bound(size_t width, size_t n) {
  return width + width * n;
}

// The first item of a block in its frame, and what else its coding needs.
struct BlockContext {
  Workspace& workspace;
  uint64_t first = 0;  // the block's first item, counted in the version
  // The format version of the frame; for an encoder, the newest that it may have.
  uint8_t version = kFirstVersion;
  // The frame's model, if it has one: of version 1, or of version 2.
  const scale::Model* scale = nullptr;
  const tiles::Model* tiles = nullptr;
  // The block's base, if it has one, and the model of differences to it.
  const uint8_t* base = nullptr;
  const delta::Model* delta = nullptr;
  // The grid that the frame's items are likely to lie on.
  const quantized::Found* grid = nullptr;
  bool is_inner = false;                   // it has the scales of a grid, and may be a grid
  std::atomic<uint64_t>* saved = nullptr;  // where an encoder adds up the bytes that it saves
};

// Encodes n items to out, which has room for block_bound(); returns the size. Adds the items'
// bytes to `sum`, unless it is null.
size_t encode_block(const EncodeOptions& options, const BlockContext& context, const uint8_t* items,
                    size_t n, uint8_t* out, Checksum* sum);

// Decodes a block of n items; returns the checksum of the decoded bytes if it is wanted.
uint32_t decode_block(const Layout& layout, const BlockContext& context, const uint8_t* block,
                      size_t size, size_t n, const Zstd* zstd, bool want_checksum, uint8_t* items);

}  // namespace bf16codecs
