#include "codec/frame_model.h"

namespace bf16codecs {

BlockContext FrameModel::context(Workspace& workspace, uint64_t first) const {
  BlockContext context{workspace};
  context.first = first;
  context.scale = scale ? &*scale : nullptr;
  context.tiles = tiles ? &*tiles : nullptr;
  context.delta = delta ? &*delta : nullptr;
  return context;
}

FrameModel fit_scale_model(const uint8_t* raw, size_t size, const EncodeOptions& options) {
  FrameModel model;
  model.scale = scale::Model::fit(options.layout, raw, size / options.layout.planes(), options.row);
  model.bytes = model.scale->write();
  return model;
}

FrameModel fit_tile_model(const uint8_t* raw, size_t size, const EncodeOptions& options) {
  FrameModel model;
  model.tiles = tiles::Model::fit(options.layout, raw, size / options.layout.planes(), options.row);
  model.bytes = model.tiles->write();
  return model;
}

FrameModel fit_delta_model(const uint8_t* base, const uint8_t* raw, size_t size,
                           const EncodeOptions& options) {
  FrameModel model;
  model.delta = delta::Model::fit(options.layout, base, raw, size / options.layout.planes(),
                                  options.row, options.is_best());
  model.bytes = model.delta->write();
  return model;
}

FrameModel read_model(const FrameIndex& index, size_t first, size_t last) {
  FrameModel model;
  const Header& header = index.header;
  if (first == last || !header.has_model) return model;
  const size_t version = header.version_of(first);
  const uint64_t n = header.version_items(), begin = header.first_in_version(first);
  const uint64_t end = begin + index.items(first, last);
  const std::vector<uint8_t>& bytes =
      header.has_differences ? index.versions[version].model : index.model;
  const ModelKind kind = header.has_differences ? index.versions[version].kind : ModelKind::tiles;
  if (header.version == kFirstVersion) {
    model.scale = scale::Model::read(header.layout, bytes.data(), bytes.size(), n, begin, end);
  } else if (kind == ModelKind::tiles) {
    model.tiles = tiles::Model::read(header.layout, bytes.data(), bytes.size(), n, begin, end);
  } else if (kind == ModelKind::difference) {
    model.delta = delta::Model::read(header.layout, bytes.data(), bytes.size(), n, begin, end);
  }
  return model;
}

}  // namespace bf16codecs
