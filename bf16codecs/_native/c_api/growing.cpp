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

namespace {

// The number of an existing version.
size_t check_there(const GrowingIndex& index, uint64_t number) {
  if (number < index.entries.size()) return static_cast<size_t>(number);
  throw std::out_of_range("no version " + std::to_string(number) + ": there are " +
                          std::to_string(index.entries.size()));
}

}  // namespace
}  // namespace bf16codecs::c_api

namespace c_api = bf16codecs::c_api;

extern "C" int bf16codecs_is_growing(const void* prefix, size_t size) {
  return prefix != nullptr && bf16codecs::is_growing(static_cast<const uint8_t*>(prefix), size);
}

extern "C" bf16codecs_status bf16codecs_growing_open(const void* directory, size_t size,
                                                     bf16codecs_growing** growing,
                                                     bf16codecs_error* error) {
  return c_api::guarded(error, [&] {
    c_api::required(growing) = nullptr;
    const std::span<const uint8_t> bytes = c_api::bytes_of(directory, size);
    if (size > 0 && !bf16codecs::is_growing(bytes.data(), size)) {
      bf16codecs::check_magic_and_version(bytes.data(), size);
      throw bf16codecs::CorruptDataError("it is no growing frame: open it by bf16codecs_open()");
    }
    *growing = new bf16codecs_growing{bf16codecs::read_growing(bytes.data(), size)};
  });
}

extern "C" void bf16codecs_growing_close(bf16codecs_growing* growing) {
  delete growing;
}

extern "C" bf16codecs_status bf16codecs_growing_info(const bf16codecs_growing* growing,
                                                     bf16codecs_info* info,
                                                     bf16codecs_error* error) {
  return c_api::guarded(
      error, [&] { c_api::write_struct(info, c_api::info_of(c_api::index_of(growing))); });
}

extern "C" bf16codecs_status bf16codecs_growing_version(const bf16codecs_growing* growing,
                                                        uint64_t number,
                                                        bf16codecs_version_info* version,
                                                        bf16codecs_error* error) {
  return c_api::guarded(error, [&] {
    const bf16codecs::GrowingIndex& index = c_api::index_of(growing);
    const size_t v = c_api::check_there(index, number);
    bf16codecs_version_info found = BF16CODECS_VERSION_INFO_INIT;
    found.offset = index.begin(v);
    found.size = index.frame_size(v);
    found.parent = index.entries[v].has_parent() ? index.entries[v].parent : BF16CODECS_NO_PARENT;
    c_api::write_struct(version, found);
  });
}

extern "C" bf16codecs_status bf16codecs_growing_frame(const bf16codecs_growing* growing,
                                                      uint64_t number, const void* head,
                                                      size_t size, bf16codecs_frame** frame,
                                                      bf16codecs_error* error) {
  return c_api::guarded(error, [&] {
    c_api::required(frame) = nullptr;
    const bf16codecs::GrowingIndex& index = c_api::index_of(growing);
    const size_t v = c_api::check_there(index, number);
    const std::span<const uint8_t> bytes = c_api::bytes_of(head, size);
    *frame = new bf16codecs_frame{bf16codecs::read_growing_frame(index, v, bytes.data(), size)};
  });
}
