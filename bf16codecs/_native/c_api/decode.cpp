#include <algorithm>

#include "c_api/frame.h"
#include "c_api/given.h"
#include "codec/checked.h"
#include "codec/growing.h"

namespace bf16codecs::c_api {
namespace {

// The caller's options for decoding.
struct Given {
  OptionalBytes base;
  bool padded;
  Zstd zstd;

  explicit Given(const bf16codecs_decode_options* options) {
    const bf16codecs_decode_options all = read_struct(options, kDecodeDefaults);
    if (all.base != nullptr) base = bytes_of(all.base, all.base_size);
    padded = all.padded != 0;
    zstd = zstd_of(all.zstd);
  }
  const Zstd* decompressor() const { return zstd.decompress ? &zstd : nullptr; }
};

size_t decode_versions_there(std::span<const uint8_t> bytes, const Given& given, void* memory,
                             size_t capacity) {
  const GrowingIndex index = read_growing(bytes.data(), bytes.size());
  const std::vector<FrameIndex> frames = read_growing_frames(index, bytes.data(), bytes.size());
  const uint64_t there = frames.size() * index.version_size;
  const uint64_t size = given.padded ? index.raw_size() : there;
  uint8_t* const out = room_of(memory, capacity, size);
  decode_growing(index, frames, bytes.data(), given.decompressor(), out);
  std::fill(out + there, out + size, kNotThere);
  return static_cast<size_t>(size);
}

size_t decode(std::span<const uint8_t> bytes, const Given& given, void* memory, size_t capacity) {
  if (is_growing(bytes.data(), bytes.size())) {
    return decode_versions_there(bytes, given, memory, capacity);
  }
  const FrameIndex index = read_whole(bytes);
  check_outside_base(index, given.base);
  uint8_t* const out = room_of(memory, capacity, index.header.raw_size);
  decode_whole(index, bytes, given.decompressor(), given.base, out);
  return static_cast<size_t>(index.header.raw_size);
}

}  // namespace
}  // namespace bf16codecs::c_api

namespace c_api = bf16codecs::c_api;

extern "C" bf16codecs_status bf16codecs_decode(const void* frame, size_t frame_size,
                                               const bf16codecs_decode_options* options, void* out,
                                               size_t capacity, size_t* raw_size,
                                               bf16codecs_error* error) {
  return c_api::guarded(error, [&] {
    const c_api::Given given(options);
    c_api::required(raw_size) =
        c_api::decode(c_api::bytes_of(frame, frame_size), given, out, capacity);
  });
}

extern "C" bf16codecs_status bf16codecs_decode_blocks(const bf16codecs_frame* frame,
                                                      const void* payload, size_t payload_size,
                                                      uint64_t first, uint64_t last,
                                                      const bf16codecs_decode_options* options,
                                                      void* out, size_t capacity, size_t* raw_size,
                                                      bf16codecs_error* error) {
  return c_api::guarded(error, [&] {
    const bf16codecs::FrameIndex& index = c_api::index_of(frame);
    const c_api::Given given(options);
    bf16codecs::check_blocks(index, first, last);
    const uint64_t size = c_api::raw_size_of(index, first, last);
    uint8_t* const memory = c_api::room_of(out, capacity, size);
    bf16codecs::decode_range(index, c_api::bytes_of(payload, payload_size),
                             static_cast<size_t>(first), static_cast<size_t>(last),
                             given.decompressor(), given.base, memory);
    c_api::required(raw_size) = static_cast<size_t>(size);
  });
}
