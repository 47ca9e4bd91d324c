#include "c_api/frame.h"

namespace bf16codecs::c_api {

bf16codecs_info info_of(const GrowingIndex& index) {
  bf16codecs_info info = BF16CODECS_INFO_INIT;
  info.version = kFormatVersion;
  info.codec = BF16CODECS_CODEC_GROWING;
  info.dtype = static_cast<int>(index.dtype);
  info.steps = static_cast<unsigned>(index.entries.size());
  info.room = index.room;
  info.item_size = item_size(index.dtype);
  info.raw_size = index.entries.size() * index.version_size;
  info.padded_size = index.raw_size();
  info.frame_size = index.end();
  info.head_size = index.directory_size();
  info.block_items = uint64_t{1} << index.block_log2;
  return info;
}

GrowingIndex directory_with(const void* directory, size_t size, uint64_t number) {
  GrowingIndex index = read_growing(bytes_of(directory, size).data(), size);
  if (number >= index.entries.size()) {
    throw std::out_of_range("no version " + std::to_string(number) + ": there are " +
                            std::to_string(index.entries.size()));
  }
  return index;
}

}  // namespace bf16codecs::c_api

namespace c_api = bf16codecs::c_api;

extern "C" int bf16codecs_is_growing(const void* prefix, size_t size) {
  return prefix != nullptr && bf16codecs::is_growing(static_cast<const uint8_t*>(prefix), size);
}

extern "C" bf16codecs_status bf16codecs_growing_info(const void* directory, size_t size,
                                                     bf16codecs_info* info,
                                                     bf16codecs_error* error) {
  return c_api::guarded(error, [&] {
    const uint8_t* const bytes = c_api::bytes_of(directory, size).data();
    c_api::write_struct(info, c_api::info_of(bf16codecs::read_growing(bytes, size)));
  });
}

extern "C" bf16codecs_status bf16codecs_growing_find(const void* directory, size_t size,
                                                     uint64_t number,
                                                     bf16codecs_growing_version* version,
                                                     bf16codecs_error* error) {
  return c_api::guarded(error, [&] {
    const bf16codecs::GrowingIndex index = c_api::directory_with(directory, size, number);
    const size_t v = static_cast<size_t>(number);
    bf16codecs_growing_version found = BF16CODECS_GROWING_VERSION_INIT;
    found.offset = index.begin(v);
    found.size = index.frame_size(v);
    found.parent = index.entries[v].has_parent() ? index.entries[v].parent : BF16CODECS_NO_PARENT;
    c_api::write_struct(version, found);
  });
}

extern "C" bf16codecs_status bf16codecs_growing_open(const void* directory, size_t directory_size,
                                                     uint64_t number, const void* head, size_t size,
                                                     bf16codecs_frame** frame,
                                                     bf16codecs_error* error) {
  return c_api::guarded(error, [&] {
    c_api::required(frame) = nullptr;
    const bf16codecs::GrowingIndex index = c_api::directory_with(directory, directory_size, number);
    const std::span<const uint8_t> bytes = c_api::bytes_of(head, size);
    *frame = new bf16codecs_frame{bf16codecs::read_growing_frame(index, static_cast<size_t>(number),
                                                                 bytes.data(), bytes.size())};
  });
}
