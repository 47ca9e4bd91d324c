#include "bindings/inspect.h"

#include <cstdio>
#include <span>

#include "bindings/buffers.h"
#include "block/block.h"
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

// The grid of a block from the first bytes of its payload.
nb::str describe_grid(const FrameIndex& index, size_t b, std::span<const uint8_t> payload,
                      size_t row) {
  const Header& header = index.header;
  const quantized::Grid grid =
      quantized::read_grid(header.layout, header.first_in_version(b), index.items(b, b + 1),
                           payload.data(), payload.size());
  return nb::str(quantized::describe(grid, row).c_str());
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
  if (views[0].mode == Mode::grid)
    block["grid"] = describe_grid(index, b, {views[0].payload, views[0].size}, 0);
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

nb::object block_grid(const FrameIndex& index, size_t b, nb::handle prefix_object, size_t row) {
  if (b >= index.blocks()) throw nb::index_error("no such block");
  const Source prefix(prefix_object);
  const std::span<const uint8_t> bytes = prefix.bytes();
  const bool is_grid = index.header.version == kFormatVersion && !bytes.empty() &&
                       bytes[0] == static_cast<uint8_t>(Mode::grid);
  if (!is_grid) return nb::none();
  // Before the payload are the modes of the planes, and the size of the only one that has bytes.
  const size_t start = index.header.width() + 4;
  if (bytes.size() < start) throw CorruptDataError("block: it is shorter than its sizes");
  return describe_grid(index, b, bytes.subspan(start), row);
}

nb::dict inspect(const uint8_t* bytes, size_t size) {
  return inspect_frame(read_whole({bytes, size}), bytes);
}

}  // namespace bf16codecs
