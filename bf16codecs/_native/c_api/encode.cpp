#include "c_api/given.h"
#include "codec/checked.h"

namespace c_api = bf16codecs::c_api;

extern "C" bf16codecs_status bf16codecs_encode_room(uint64_t raw_size,
                                                    const bf16codecs_encode_options* options,
                                                    uint64_t* room, bf16codecs_error* error) {
  return c_api::guarded(error, [&] {
    const auto given = c_api::read_struct(options, c_api::kEncodeDefaults);
    const bf16codecs::EncodeOptions asked = c_api::encode_options(given);
    bf16codecs::check_steps(asked.steps);
    // A frame takes at most twice as much, so that sums below do not overflow.
    if (raw_size > UINT64_MAX / 4) throw std::invalid_argument("no buffer has so many bytes");
    c_api::required(room) = bf16codecs::encode_room(raw_size, asked);
  });
}

extern "C" bf16codecs_status bf16codecs_encode(const void* raw, size_t raw_size,
                                               const bf16codecs_encode_options* options,
                                               void* frame, size_t capacity, size_t* frame_size,
                                               bf16codecs_error* error) {
  return c_api::guarded(error, [&] {
    const auto given = c_api::read_struct(options, c_api::kEncodeDefaults);
    bf16codecs::EncodeOptions asked = c_api::encode_options(given);
    const std::span<const uint8_t> bytes = c_api::bytes_of(raw, raw_size);
    bf16codecs::OptionalBytes base;
    if (given.base != nullptr) base = c_api::bytes_of(given.base, raw_size);
    bf16codecs::check_request(asked, raw_size, base);
    uint8_t* const out = c_api::room_of(frame, capacity, bf16codecs::encode_room(raw_size, asked));
    const bf16codecs::Zstd zstd = c_api::zstd_of(given.zstd);
    asked.zstd = &zstd;
    c_api::required(frame_size) = bf16codecs::encode(bytes.data(), raw_size, asked,
                                                     static_cast<const uint8_t*>(given.base), out);
  });
}
