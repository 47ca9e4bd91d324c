#include "bindings/growing.h"

#include <nanobind/stl/vector.h>

#include <algorithm>

#include "bindings/gil.h"
#include "bindings/inspect.h"
#include "bindings/names.h"
#include "bindings/zstd_hooks.h"
#include "codec/growing.h"
#include "format/growing.h"
#include "format/names.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace bf16codecs {
namespace {

// A growing frame whose directory and heads are valid; its blocks are not checked.
struct Growing {
  GrowingIndex index;
  std::vector<FrameIndex> frames;

  explicit Growing(const Source& source)
      : index(read_growing(source.data(), source.size())),
        frames(read_growing_frames(index, source.data(), source.size())) {}

  uint64_t size_there() const { return frames.size() * index.version_size; }
  uint64_t size(bool is_padded) const { return is_padded ? index.raw_size() : size_there(); }

  void decode(const Source& source, uint8_t* out, uint64_t size) const {
    const Zstd zstd = zstd_hooks();
    const ReleasedGil released;
    decode_growing(index, frames, source.data(), &zstd, out);
    std::fill(out + size_there(), out + size, kNotThere);
  }
};

nb::object parent_of(const GrowingEntry& entry) {
  return entry.has_parent() ? nb::object(nb::int_(entry.parent)) : nb::none();
}

nb::list parents_of(const GrowingIndex& index) {
  nb::list result;
  for (const GrowingEntry& entry : index.entries) result.append(parent_of(entry));
  return result;
}

nb::list ends_of(const GrowingIndex& index) {
  nb::list result;
  for (const GrowingEntry& entry : index.entries) result.append(entry.end);
  return result;
}

void check_there(const GrowingIndex& index, size_t version) {
  if (version < index.entries.size()) return;
  throw std::out_of_range("no version " + std::to_string(version) + ": there are " +
                          std::to_string(index.entries.size()));
}

uint64_t head_size_of(const GrowingIndex& index, size_t version, nb::handle prefix_object) {
  const Source prefix(prefix_object);
  check_there(index, version);
  return growing_head_size(index, version, prefix.data(), prefix.size());
}

FrameIndex frame_of(const GrowingIndex& index, size_t version, nb::handle prefix_object) {
  const Source prefix(prefix_object);
  check_there(index, version);
  return read_growing_frame(index, version, prefix.data(), prefix.size());
}

nb::bytes new_directory(int dtype, size_t block, uint64_t version_size, uint32_t room) {
  GrowingIndex index;
  index.dtype = number_from("dtype", kDTypeNames, dtype);
  index.block_log2 = block_log2_for(block, item_size(index.dtype));
  index.version_size = version_size;
  index.room = room;
  check_growing(index);
  NewBytes bytes(index.directory_size());
  write_growing(index, bytes.data());
  return bytes.whole();
}

nb::bytes new_entry(uint64_t end, nb::object parent) {
  GrowingEntry entry{end, kNoParent};
  if (!parent.is_none()) entry.parent = nb::cast<uint16_t>(parent);
  NewBytes bytes(kGrowingEntry);
  write_growing_entry(entry, bytes.data());
  return bytes.whole();
}

}  // namespace

nb::bytes decode_growing_bytes(const Source& frame, bool is_padded) {
  const Growing growing(frame);
  const uint64_t size = growing.size(is_padded);
  NewBytes raw(size);
  growing.decode(frame, raw.data(), size);
  return raw.whole();
}

void decode_growing_into(const Source& frame, const Target& out, bool is_padded) {
  const Growing growing(frame);
  const uint64_t size = growing.size(is_padded);
  check_room(out, size);
  growing.decode(frame, out.data(), size);
}

nb::dict inspect_growing(const Source& frame) {
  const Growing growing(frame);
  const GrowingIndex& index = growing.index;
  nb::list frames;
  for (size_t v = 0; v < growing.frames.size(); ++v) {
    nb::dict frame_info = inspect(frame.data() + index.begin(v), index.frame_size(v));
    frame_info["offset"] = index.begin(v);
    frames.append(frame_info);
  }
  nb::dict result;
  result["version"] = kFormatVersion;
  result["codec"] = "growing";
  result["dtype"] = name_of(kDTypeNames, index.dtype);
  result["raw_size"] = index.raw_size();
  result["encoded_size"] = index.end();
  result["block_items"] = size_t{1} << index.block_log2;
  result["steps"] = index.room;
  result["parents"] = parents_of(index);
  result["frames"] = frames;
  return result;
}

void publish_growing(nb::module_& module) {
  module.def(
      "is_growing",
      [](nb::handle prefix_object) {
        const Source prefix(prefix_object);
        return is_growing(prefix.data(), prefix.size());
      },
      "prefix"_a);
  module.def("growing_directory", &new_directory, "dtype"_a, "block"_a, "version_size"_a, "room"_a);
  module.def("growing_entry", &new_entry, "end"_a, "parent"_a.none());
  nb::class_<GrowingIndex>(module, "GrowingIndex")
      .def(
          "__init__",
          [](GrowingIndex* self, nb::handle prefix_object) {
            const Source prefix(prefix_object);
            new (self) GrowingIndex(read_growing(prefix.data(), prefix.size()));
          },
          "prefix"_a)
      .def_prop_ro("dtype", [](const GrowingIndex& i) { return name_of(kDTypeNames, i.dtype); })
      .def_ro("room", &GrowingIndex::room)
      .def_ro("version_size", &GrowingIndex::version_size)
      .def_prop_ro("raw_size", &GrowingIndex::raw_size)
      .def_prop_ro("directory_size", &GrowingIndex::directory_size)
      .def_prop_ro("block_items", [](const GrowingIndex& i) { return size_t{1} << i.block_log2; })
      .def_prop_ro("item_size", [](const GrowingIndex& i) { return item_size(i.dtype); })
      .def_prop_ro("ends", &ends_of)
      .def_prop_ro("parents", &parents_of)
      .def("head_size", &head_size_of, "version"_a, "prefix"_a)
      .def("frame", &frame_of, "version"_a, "prefix"_a);
}

}  // namespace bf16codecs
