#include <memory>

#include "block/block.h"
#include "c_api/frame.h"
#include "codec/checked.h"
#include "codec/growing.h"
#include "format/names.h"
#include "kernels/dispatch.h"
#include "kernels/kernels.h"

namespace bf16codecs::c_api {

uint64_t raw_size_of(const FrameIndex& index, uint64_t first, uint64_t last) {
  const Header& header = index.header;
  const uint64_t items = header.first_item(last) - header.first_item(first);
  return items * header.width() + (last == header.blocks() ? header.tail_size() : 0);
}

bf16codecs_info info_of(const FrameIndex& index) {
  const Header& header = index.header;
  bf16codecs_info info = BF16CODECS_INFO_INIT;
  info.version = header.version;
  info.codec = static_cast<int>(header.codec);
  info.dtype = static_cast<int>(header.layout.dtype);
  info.by_byte = header.layout.by_byte;
  info.has_checksums = header.has_checksums;
  info.needs_base = header.needs_base();
  info.steps = header.versions;
  info.item_size = header.width();
  info.raw_size = info.padded_size = header.raw_size;
  info.frame_size = index.frame_size();
  info.head_size = header.head_size();
  info.block_items = header.block_items();
  info.blocks = header.blocks();
  info.base_digest = header.base_digest;
  return info;
}

namespace {

bf16codecs_block block_of(const FrameIndex& index, uint64_t number) {
  const Header& header = index.header;
  if (number >= header.blocks()) {
    throw std::out_of_range("no block " + std::to_string(number) + ": the frame has " +
                            std::to_string(header.blocks()));
  }
  const size_t b = static_cast<size_t>(number);
  bf16codecs_block block = BF16CODECS_BLOCK_INIT;
  block.items = index.items(b, b + 1);
  block.offset = index.offsets[b];
  block.size = index.offsets[b + 1] - index.offsets[b];
  block.raw_offset = header.first_item(number) * header.width();
  block.raw_size = raw_size_of(index, number, number + 1);
  block.parent = BF16CODECS_NO_PARENT;
  if (header.needs_base()) {
    block.parent = BF16CODECS_OUTSIDE;
  } else if (header.has_differences) {
    const Version& version = index.versions[header.version_of(number)];
    if (version.has_base()) {
      block.parent = version.parent * header.version_blocks() + number % header.version_blocks();
    }
  }
  block.has_checksum = header.has_checksums;
  if (header.has_checksums) block.checksum = index.checksums[b];
  return block;
}

void inspect_planes(const FrameIndex& index, uint64_t number, std::span<const uint8_t> bytes,
                    bf16codecs_plane planes[]) {
  const bf16codecs_block block = block_of(index, number);
  if (bytes.size() != block.size) {
    throw std::invalid_argument("block " + std::to_string(number) + " has " +
                                counted(block.size, "byte") + ", not " +
                                std::to_string(bytes.size()));
  }
  PlaneView views[kMaxItemSize];
  const size_t width = index.header.width();
  parse_block(width, static_cast<size_t>(block.items), bytes.data(), bytes.size(), views);
  for (size_t p = 0; p < width; ++p) planes[p] = {static_cast<int>(views[p].mode), views[p].size};
}

bf16codecs_info inspect(std::span<const uint8_t> bytes) {
  if (!is_growing(bytes.data(), bytes.size())) return info_of(read_whole(bytes));
  const GrowingIndex index = read_growing(bytes.data(), bytes.size());
  read_growing_frames(index, bytes.data(), bytes.size());
  return info_of(index);
}

template <typename Number, size_t n>
const char* name_or_null(const Named<Number> (&names)[n], int number) {
  const auto found = find_number(names, number);
  return found ? name_of(names, *found) : nullptr;
}

}  // namespace
}  // namespace bf16codecs::c_api

namespace c_api = bf16codecs::c_api;

extern "C" const char* bf16codecs_version() {
  return BF16CODECS_RELEASE;
}

extern "C" const char* bf16codecs_active_isa() {
  try {
    return bf16codecs::kernels().name;
  } catch (...) {
    return nullptr;  // the first call detects instruction sets, and allocates
  }
}

extern "C" const char* bf16codecs_codec_name(int codec) {
  if (codec == BF16CODECS_CODEC_GROWING) return "growing";
  return c_api::name_or_null(bf16codecs::kCodecNames, codec);
}

extern "C" const char* bf16codecs_dtype_name(int dtype) {
  return c_api::name_or_null(bf16codecs::kDTypeNames, dtype);
}

extern "C" const char* bf16codecs_mode_name(int mode) {
  return c_api::name_or_null(bf16codecs::kModeNames, mode);
}

extern "C" bf16codecs_status bf16codecs_inspect(const void* frame, size_t frame_size,
                                                bf16codecs_info* info, bf16codecs_error* error) {
  return c_api::guarded(error, [&] {
    c_api::check_struct(info);
    c_api::write_struct(info, c_api::inspect(c_api::bytes_of(frame, frame_size)));
  });
}

extern "C" bf16codecs_status bf16codecs_head_size(const void* prefix, size_t size,
                                                  uint64_t* head_size, bf16codecs_error* error) {
  return c_api::guarded(error, [&] {
    const std::span<const uint8_t> bytes = c_api::bytes_of(prefix, size);
    c_api::required(head_size) = bf16codecs::is_growing(bytes.data(), size)
                                     ? bf16codecs::growing_directory_size(bytes.data(), size)
                                     : bf16codecs::read_header(bytes.data(), size).head_size();
  });
}

extern "C" bf16codecs_status bf16codecs_open(const void* head, size_t size,
                                             bf16codecs_frame** frame, bf16codecs_error* error) {
  return c_api::guarded(error, [&] {
    c_api::required(frame) = nullptr;
    const std::span<const uint8_t> bytes = c_api::bytes_of(head, size);
    if (bf16codecs::is_growing(bytes.data(), size)) {
      throw std::invalid_argument("it is a growing frame: open it by bf16codecs_growing_open()");
    }
    *frame = new bf16codecs_frame{bf16codecs::read_index(bytes.data(), size)};
  });
}

extern "C" void bf16codecs_close(bf16codecs_frame* frame) {
  delete frame;
}

extern "C" bf16codecs_status bf16codecs_frame_info(const bf16codecs_frame* frame,
                                                   bf16codecs_info* info, bf16codecs_error* error) {
  return c_api::guarded(error,
                        [&] { c_api::write_struct(info, c_api::info_of(c_api::index_of(frame))); });
}

extern "C" bf16codecs_status bf16codecs_block_info(const bf16codecs_frame* frame, uint64_t number,
                                                   bf16codecs_block* block,
                                                   bf16codecs_error* error) {
  return c_api::guarded(
      error, [&] { c_api::write_struct(block, c_api::block_of(c_api::index_of(frame), number)); });
}

extern "C" bf16codecs_status bf16codecs_block_planes(const bf16codecs_frame* frame, uint64_t number,
                                                     const void* block, size_t size,
                                                     bf16codecs_plane planes[],
                                                     bf16codecs_error* error) {
  return c_api::guarded(error, [&] {
    c_api::required(planes);
    c_api::inspect_planes(c_api::index_of(frame), number, c_api::bytes_of(block, size), planes);
  });
}
