#include "bindings/inspect.h"

#include <cstdio>

#include "bindings/buffers.h"
#include "block.h"
#include "codec/checked.h"
#include "format/names.h"
#include "quantized/describe.h"

namespace bf16codecs {
namespace {

nb::str hex(uint64_t number) {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(number));
  return nb::str(text);
}

}  // namespace

nb::list parents(const FrameIndex& index) {
  nb::list result;
  if (index.header.versions == 1) return result;
  for (const Version& version : index.versions) {
    result.append(version.has_base() ? nb::object(nb::int_(version.parent)) : nb::none());
  }
  return result;
}

namespace {

nb::str grid_of(const FrameIndex& index, const PlaneView& view, size_t b, size_t n) {
  const Header& header = index.header;
  const uint64_t first = b % header.version_blocks() * header.block_items();
  const quantized::Payload payload =
      quantized::read_payload(header.layout, first, n, view.payload, view.size);
  return nb::str(quantized::describe(payload.grid).c_str());
}

nb::dict inspect_block(const FrameIndex& index, const uint8_t* frame, size_t b) {
  PlaneView views[kMaxItemSize];
  const size_t size = static_cast<size_t>(index.offsets[b + 1] - index.offsets[b]);
  const size_t n = index.items(b, b + 1);
  parse_block(index.header.width(), n, frame + index.offsets[b], size, views);
  nb::list planes;
  for (size_t p = 0; p < index.header.width(); ++p) {
    nb::dict plane;
    plane["mode"] = name_of(kModeNames, views[p].mode);
    plane["size"] = views[p].size;
    planes.append(plane);
  }
  nb::dict block;
  if (views[0].mode == Mode::grid) block["grid"] = grid_of(index, views[0], b, n);
  block["items"] = n;
  block["offset"] = index.offsets[b];
  block["size"] = size;
  block["checksum"] =
      index.checksums.empty() ? nb::none() : nb::object(nb::int_(index.checksums[b]));
  block["planes"] = planes;
  return block;
}

nb::dict inspect_frame(const FrameIndex& index, const uint8_t* frame) {
  const Header& header = index.header;
  nb::dict result;
  result["version"] = header.version;
  result["codec"] = name_of(kCodecNames, header.codec);
  result["dtype"] = name_of(kDTypeNames, header.layout.dtype);
  result["by"] = header.layout.by_byte ? "byte" : "field";
  result["checksum"] = header.has_checksums;
  result["raw_size"] = header.raw_size;
  result["encoded_size"] = index.frame_size();
  result["block_items"] = header.block_items();
  if (header.has_differences) {
    result["steps"] = header.versions;
    result["parents"] = parents(index);
    result["base"] = header.needs_base() ? nb::object(hex(header.base_digest)) : nb::none();
  }
  nb::list blocks;
  for (size_t b = 0; b < index.blocks(); ++b) {
    blocks.append(inspect_block(index, frame, b));
  }
  result["blocks"] = blocks;
  return result;
}

}  // namespace

nb::dict inspect(const uint8_t* bytes, size_t size) {
  return inspect_frame(read_whole({bytes, size}), bytes);
}

}  // namespace bf16codecs
