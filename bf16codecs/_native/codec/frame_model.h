#pragma once

// The model that the blocks of one version of a frame share.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "block/block.h"
#include "delta/model.h"
#include "format/frame.h"
#include "scale/model.h"
#include "tiles/model.h"

namespace bf16codecs {

struct FrameModel {
  std::optional<scale::Model> scale;  // of format version 1
  std::optional<tiles::Model> tiles;  // of format version 2
  std::optional<delta::Model> delta;  // of format version 2
  std::vector<uint8_t> bytes;         // the written model

  bool exists() const { return scale || tiles || delta; }
  ModelKind kind() const {
    return delta ? ModelKind::difference : tiles ? ModelKind::tiles : ModelKind::none;
  }
  // The context of a block, without its base. `first` is the block's first item, counted in the
  // version.
  BlockContext context(Workspace& workspace, uint64_t first) const;
};

FrameModel fit_scale_model(const uint8_t* raw, size_t size, const EncodeOptions& options);
FrameModel fit_tile_model(const uint8_t* raw, size_t size, const EncodeOptions& options);
FrameModel fit_delta_model(const uint8_t* base, const uint8_t* raw, size_t size,
                           const EncodeOptions& options);

// The largest model that may pay, in bytes: 1/64 of the version, a fourth of a bit for an item of
// 16 bits, and some bytes for the smallest ones.
inline uint64_t model_room(uint64_t raw_size) {
  return 64 + raw_size / 64;
}

// Reads the part of a version's model that decoding its blocks [first, last) needs. Throws
// CorruptDataError.
FrameModel read_model(const FrameIndex& index, size_t first, size_t last);

}  // namespace bf16codecs
