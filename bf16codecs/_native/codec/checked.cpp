#include "codec/checked.h"

#include <stdexcept>
#include <string>

#include "format/errors.h"

namespace bf16codecs {
namespace {

void check_base_size(const FrameIndex& index, size_t first, size_t last, size_t size) {
  const size_t wanted = index.items(first, last) * index.header.width();
  if (size == wanted) return;
  throw BaseMismatchError("the base of the blocks has " + counted(size, "byte") + " of " +
                          std::to_string(wanted));
}

}  // namespace

void check_steps(unsigned steps) {
  if (steps >= 1 && steps <= kMaxSteps) return;
  throw std::invalid_argument("steps must be 1 to " + std::to_string(kMaxSteps));
}

void check_request(const EncodeOptions& options, size_t size, OptionalBytes base) {
  if ((options.steps > 1 || base) && options.layout.by_byte) {
    throw std::invalid_argument(
        "planes that are split by byte have no differences: split them by field");
  }
  if (base && base->size() != size) {
    throw std::invalid_argument("the base has " + counted(base->size(), "byte") +
                                ", and what is encoded has " + std::to_string(size));
  }
  check_steps(options.steps);
  if (base && options.steps != 1) {
    throw std::invalid_argument("steps have their bases in the frame: there is no other");
  }
  if (size % (options.steps * options.layout.planes()) != 0 && options.steps > 1) {
    throw std::invalid_argument(counted(size, "byte") + " are not " +
                                std::to_string(options.steps) + " steps of whole items");
  }
}

FrameIndex read_whole(std::span<const uint8_t> frame) {
  FrameIndex index = read_index(frame.data(), frame.size());
  check_frame_size(index, frame.size());
  return index;
}

void check_outside_base(const FrameIndex& index, OptionalBytes base) {
  if (!index.header.needs_base()) return;
  if (!base) throw BaseMismatchError("the frame has differences to a base, and there is none");
  check_base(index, base->data(), base->size());
}

void decode_whole(const FrameIndex& index, std::span<const uint8_t> frame, const Zstd* zstd,
                  OptionalBytes base, uint8_t* out) {
  decode_frame(index, frame.data() + index.offsets[0], zstd,
               index.header.needs_base() ? base->data() : nullptr, out);
}

void check_blocks(const FrameIndex& index, uint64_t first, uint64_t last) {
  if (first >= last || last > index.blocks()) {
    throw std::out_of_range("no blocks " + std::to_string(first) + " to " + std::to_string(last) +
                            ": the frame has " + std::to_string(index.blocks()));
  }
  if (index.header.version_of(first) != index.header.version_of(last - 1)) {
    throw std::out_of_range("blocks of several versions");
  }
}

void check_payload_size(const FrameIndex& index, size_t first, size_t last, size_t size) {
  const uint64_t wanted = index.offsets[last] - index.offsets[first];
  if (size < wanted) {
    throw TruncatedDataError("blocks " + std::to_string(first) + " to " + std::to_string(last) +
                             " have " + counted(size, "byte") + " of " + std::to_string(wanted));
  }
  if (size != wanted) throw std::invalid_argument("payload is longer than its blocks");
}

void check_base_range(const FrameIndex& index, size_t first, size_t last,
                      std::span<const uint8_t> base) {
  check_base_size(index, first, last, base.size());
  if (index.header.needs_base()) check_base_blocks(index, base.data(), first, last);
}

void decode_range(const FrameIndex& index, std::span<const uint8_t> payload, size_t first,
                  size_t last, const Zstd* zstd, OptionalBytes base, uint8_t* out, UndoLog* log) {
  check_payload_size(index, first, last, payload.size());
  const Header& header = index.header;
  const uint8_t* of_blocks = nullptr;  // not what was given for blocks that have no base
  const bool has_base =
      header.has_differences && index.versions[header.version_of(first)].has_base();
  if (has_base) {
    if (!base) {
      throw BaseMismatchError("the blocks have differences to a base, and there is none");
    }
    if (log == nullptr) {
      check_base_range(index, first, last, *base);
    } else {
      check_base_size(index, first, last, base->size());
    }
    of_blocks = base->data();
  }
  decode_blocks(index, payload.data(), first, last, zstd, of_blocks, out, log);
}

}  // namespace bf16codecs
