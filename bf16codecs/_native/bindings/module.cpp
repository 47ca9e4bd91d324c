// bf16codecs._core: buffers in, bytes out. Policy is in Python: bf16codecs/codecs/__init__.py.

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <span>
#include <string>

#include "bindings/buffers.h"
#include "bindings/counts.h"
#include "bindings/device.h"
#include "bindings/environment.h"
#include "bindings/gil.h"
#include "bindings/grids.h"
#include "bindings/growing.h"
#include "bindings/inspect.h"
#include "bindings/names.h"
#include "bindings/run_length.h"
#include "bindings/zstd_hooks.h"
#include "codec/checked.h"
#include "format/checksum.h"
#include "format/errors.h"
#include "format/growing.h"
#include "format/names.h"
#include "format/zstd_frame.h"
#include "kernels/dispatch.h"
#include "threads/pool.h"
#include "undo_log.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace bf16codecs {
namespace {

DType dtype_from(int number) {
  return number_from("dtype", kDTypeNames, number);
}
Codec codec_from(int number) {
  return number_from("codec", kCodecNames, number);
}

// Returns the frame as bytes. With `memory`, a function that returns a buffer for a number of
// bytes, writes the frame there and returns its size.
nb::object py_encode(nb::handle raw_object, int codec, int dtype, bool by_byte, int level,
                     bool with_checksum, size_t block, size_t row, unsigned steps,
                     bool may_drop_steps, bool grid, nb::handle base_object, nb::handle memory) {
  const Source raw(raw_object);
  const OptionalSource base(base_object);
  const Zstd zstd = zstd_hooks();
  EncodeOptions options;
  options.codec = codec_from(codec);
  options.layout = {dtype_from(dtype), by_byte};
  options.level = level;
  options.has_checksums = with_checksum;
  options.block_log2 = block_log2_for(block, options.layout.planes());
  options.row = row;
  options.steps = steps;
  options.may_drop_steps = may_drop_steps;
  options.may_use_grids = grid;
  options.has_base = bool(base);
  options.zstd = &zstd;
  check_request(options, raw.size(), base.bytes());
  const auto encode_to = [&](uint8_t* frame) {
    const ReleasedGil released;
    return encode(raw.data(), raw.size(), options, base.data(), frame);
  };
  const uint64_t room = encode_room(raw.size(), options);
  if (!memory.is_none()) {
    const Target out(memory(room));
    if (out.size() < room) {
      throw nb::value_error(
          ("out has " + counted(out.size(), "byte") + ", a frame may take " + std::to_string(room))
              .c_str());
    }
    return nb::int_(encode_to(out.data()));
  }
  NewBytes frame(room);
  return frame.shrunk_to(encode_to(frame.data()));
}

// Checks the base before memory is allocated: only with the right base is the raw size credible.
void check_base_of(const FrameIndex& index, const OptionalSource& base) {
  if (index.header.needs_base() && !base) {
    throw BaseMismatchError(
        "the frame has differences to a base, and there is none: give it as "
        "bf16codecs.decode(frame, base=...)");
  }
  const ReleasedGil released;
  check_outside_base(index, base.bytes());
}

void decode_to(const FrameIndex& index, const Source& frame, const OptionalSource& base,
               uint8_t* out) {
  const Zstd zstd = zstd_hooks();
  const ReleasedGil released;
  decode_whole(index, frame.bytes(), &zstd, base.bytes(), out);
}

void decode_blocks_to(const FrameIndex& index, std::span<const uint8_t> payload, size_t first,
                      size_t last, const OptionalSource& base, const Target& out,
                      UndoLog* log = nullptr) {
  check_room(out, index.raw_size(first, last));
  const Zstd zstd = zstd_hooks();
  const ReleasedGil released;
  decode_range(index, payload, first, last, &zstd, base.bytes(), out.data(), log);
}

nb::bytes py_decode(nb::handle frame_object, nb::handle base_object, bool is_padded) {
  const Source frame(frame_object);
  const OptionalSource base(base_object);
  if (is_growing(frame.data(), frame.size())) return decode_growing_bytes(frame, is_padded);
  const FrameIndex index = read_whole(frame.bytes());
  check_base_of(index, base);
  NewBytes raw(index.header.raw_size);
  decode_to(index, frame, base, raw.data());
  return raw.whole();
}

size_t py_decode_into(nb::handle frame_object, nb::handle out_object, nb::handle base_object,
                      bool is_padded) {
  const Source frame(frame_object);
  const OptionalSource base(base_object);
  const Target out(out_object);
  if (is_growing(frame.data(), frame.size())) {
    decode_growing_into(frame, out, is_padded);
    return out.size();
  }
  const FrameIndex index = read_whole(frame.bytes());
  check_room(out, index.header.raw_size);
  check_base_of(index, base);
  decode_to(index, frame, base, out.data());
  return out.size();
}

size_t py_decode_blocks(nb::handle frame_object, size_t first, size_t last, nb::handle out_object,
                        nb::handle base_object) {
  const Source frame(frame_object);
  const OptionalSource base(base_object);
  const Target out(out_object);
  const FrameIndex index = read_whole(frame.bytes());
  check_blocks(index, first, last);
  const size_t begin = index.offsets[first], size = index.offsets[last] - begin;
  decode_blocks_to(index, frame.bytes().subspan(begin, size), first, last, base, out);
  return out.size();
}

size_t index_decode(const FrameIndex& index, nb::handle payload_object, size_t first, size_t last,
                    nb::handle out_object, nb::handle base_object, UndoLog* log) {
  const Source payload(payload_object);
  const OptionalSource base(base_object);
  const Target out(out_object);
  check_blocks(index, first, last);
  decode_blocks_to(index, payload.bytes(), first, last, base, out, log);
  return out.size();
}

void index_check_base(const FrameIndex& index, size_t first, size_t last, nb::handle base_object) {
  const Source base(base_object);
  check_blocks(index, first, last);
  const ReleasedGil released;
  check_base_range(index, first, last, base.bytes());
}

void raise_as(const char* name, const char* message) {
  const nb::object type = nb::module_::import_("bf16codecs.errors").attr(name);
  PyErr_SetString(type.ptr(), message);
}

void translate(const std::exception_ptr& p, void*) {
  try {
    std::rethrow_exception(p);
  } catch (const CorruptDataError& e) {
    raise_as("CorruptDataError", e.what());
  } catch (const TruncatedDataError& e) {
    raise_as("TruncatedDataError", e.what());
  } catch (const BaseMismatchError& e) {
    raise_as("BaseMismatchError", e.what());
  } catch (const UnsupportedVersionError& e) {
    raise_as("UnsupportedVersionError", e.what());
  } catch (const CodecError& e) {
    raise_as("CodecError", e.what());
  }
}

}  // namespace
}  // namespace bf16codecs

NB_MODULE(_core, m) {
  using namespace bf16codecs;
  nb::register_exception_translator(translate);
#if defined(NDEBUG)
  // Caches and threads may hold objects when the interpreter ends, which is not a leak.
  nb::set_leak_warnings(false);
#endif
  publish_names(m);
  m.attr("GRID_BYTES") = kBlockGridBytes;
  publish_counts(m);
  publish_grids(m);
  publish_run_length(m);

  m.def("encode", &py_encode, "src"_a, "codec"_a, "dtype"_a, nb::kw_only(), "by_byte"_a = false,
        "level"_a = 0, "checksum"_a = true, "block"_a = 0, "row"_a = 0, "steps"_a = 1,
        "may_drop_steps"_a = false, "grid"_a = true, "base"_a = nb::none(),
        "memory"_a = nb::none());
  m.def("decode", &py_decode, "src"_a, "base"_a = nb::none(), "padded"_a = false);
  m.def("decode_into", &py_decode_into, "src"_a, "out"_a, "base"_a = nb::none(),
        "padded"_a = false);
  m.def("decode_blocks", &py_decode_blocks, "src"_a, "first"_a, "last"_a, "out"_a,
        "base"_a = nb::none());
  m.def(
      "inspect",
      [](nb::handle frame_object) {
        const Source frame(frame_object);
        return is_growing(frame.data(), frame.size()) ? inspect_growing(frame)
                                                      : inspect(frame.data(), frame.size());
      },
      "src"_a);
  m.def(
      "bound",
      [](uint64_t nbytes, int codec, int dtype, size_t block, unsigned steps) {
        codec_from(codec);
        check_steps(steps);
        if (nbytes > PY_SSIZE_T_MAX) throw nb::value_error("no buffer has so many bytes");
        const size_t width = item_size(dtype_from(dtype));
        const auto versions = static_cast<uint16_t>(steps == 1 ? 0 : steps);
        return frame_bound(nbytes, width, block_log2_for(block, width), versions);
      },
      "nbytes"_a, "codec"_a, "dtype"_a, "block"_a = 0, "steps"_a = 1);
  m.def(
      "header_size",
      [](nb::handle prefix_object) {
        const Source prefix(prefix_object);
        return is_growing(prefix.data(), prefix.size())
                   ? growing_directory_size(prefix.data(), prefix.size())
                   : read_header(prefix.data(), prefix.size()).head_size();
      },
      "prefix"_a);
  m.def(
      "checksum",
      [](nb::handle object) {
        const Source bytes(object);
        return checksum(bytes.data(), bytes.size());
      },
      "buf"_a);
  m.def(
      "zstd_content_size",
      [](nb::handle object) -> nb::object {
        const Source bytes(object);
        const uint64_t size = zstd_content_size(bytes.data(), bytes.size());
        return size == kNoContentSize ? nb::none() : nb::object(nb::int_(size));
      },
      "buf"_a);
  m.def(
      "set_num_threads",
      [](int n) {
        if (n < 1 || n > static_cast<int>(kMaxThreads)) {
          throw nb::value_error("the number of threads must be 1 to 1024");
        }
        set_num_threads(static_cast<unsigned>(n));
      },
      "n"_a);
  m.def("get_num_threads", &get_num_threads);
  m.def("active_isa", [] { return kernels().name; });
  m.def("isas", &available_isas);

  nb::class_<UndoLog>(m, "UndoLog")
      .def(nb::init<>())
      .def(
          "add",
          [](UndoLog& log, nb::handle memory_object) {
            const Target memory(memory_object);
            log.add(memory.data(), memory.size());
          },
          "memory"_a)
      .def("undo", &UndoLog::undo)
      .def("clear", &UndoLog::clear);

  nb::class_<FrameIndex>(m, "Index")
      .def(
          "__init__",
          [](FrameIndex* self, nb::handle prefix_object) {
            const Source prefix(prefix_object);
            new (self) FrameIndex(read_index(prefix.data(), prefix.size()));
          },
          "prefix"_a)
      .def_prop_ro("raw_size", [](const FrameIndex& i) { return i.header.raw_size; })
      .def_prop_ro("header_size", [](const FrameIndex& i) { return i.header.head_size(); })
      .def_prop_ro("block_items", [](const FrameIndex& i) { return i.header.block_items(); })
      .def_prop_ro("item_size", [](const FrameIndex& i) { return i.header.width(); })
      .def_prop_ro("n_blocks", &FrameIndex::blocks)
      .def_prop_ro("needs_base", [](const FrameIndex& i) { return i.header.needs_base(); })
      .def_prop_ro("parents", &parents)
      .def(
          "offset",
          [](const FrameIndex& i, size_t block) {
            if (block > i.blocks()) throw nb::index_error("no such block");
            return i.offsets[block];
          },
          "block"_a)
      .def_prop_ro("offsets", [](const FrameIndex& i) { return i.offsets; })
      .def_prop_ro("frame_size", &FrameIndex::frame_size)
      .def("grid", &block_grid, "block"_a, "prefix"_a, "row"_a = 0)
      .def("decode_block_range", &index_decode, "payload"_a, "first"_a, "last"_a, "out"_a,
           "base"_a = nb::none(), "log"_a = nb::none())
      .def("check_base", &index_check_base, "first"_a, "last"_a, "base"_a);
  publish_growing(m);
  publish_device(m);
  warn_of_environment();
}
