#pragma once

// What the blocks of one version of a frame share.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "block.h"
#include "delta/model.h"
#include "format/frame.h"
#include "scale/model.h"
#include "tiles/model.h"

namespace bf16codecs {

struct FrameModel {
  std::optional<scale::Model> scale;  // of format version 1
  std::optional<tiles::Model> tiles;  // of format version 2
  std::optional<delta::Model> delta;  // likewise
  std::vector<uint8_t> bytes;         // what is written of it

  bool exists() const { return scale || tiles || delta; }
  ModelKind kind() const {
    return delta ? ModelKind::difference : tiles ? ModelKind::tiles : ModelKind::none;
  }
  // Of a block without its base; `first` is its first item, of the version's.
  BlockContext context(Workspace& workspace, uint64_t first) const;
};

FrameModel fit_scale_model(const uint8_t* raw, size_t size, const EncodeOptions& options);
FrameModel fit_tile_model(const uint8_t* raw, size_t size, const EncodeOptions& options);
FrameModel fit_delta_model(const uint8_t* base, const uint8_t* raw, size_t size,
                           const EncodeOptions& options);

// A larger model cannot pay: it takes a fourth of a bit an item, and the least ones some bytes.
inline uint64_t model_room(uint64_t raw_size) {
  return 64 + raw_size / 64;
}

// Reads what decoding blocks [first, last), all of one version, needs of its model. Throws
// CorruptDataError.
FrameModel read_model(const FrameIndex& index, size_t first, size_t last);

}  // namespace bf16codecs
