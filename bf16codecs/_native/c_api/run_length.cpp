#include "run_length/run_length.h"

#include "c_api/guard.h"

namespace c_api = bf16codecs::c_api;
namespace run_length = bf16codecs::run_length;

extern "C" uint64_t bf16codecs_rle_bound(uint64_t raw_size) {
  return run_length::bound(raw_size);
}

extern "C" bf16codecs_status bf16codecs_rle_encode(const void* raw, size_t raw_size, void* encoded,
                                                   size_t capacity, size_t* encoded_size,
                                                   bf16codecs_error* error) {
  return c_api::guarded(error, [&] {
    uint8_t* const out = c_api::room_of(encoded, capacity, run_length::bound(raw_size));
    c_api::required(encoded_size) =
        run_length::encode(c_api::bytes_of(raw, raw_size).data(), raw_size, out);
  });
}

extern "C" bf16codecs_status bf16codecs_rle_decoded_size(const void* encoded, size_t encoded_size,
                                                         uint64_t* raw_size,
                                                         bf16codecs_error* error) {
  return c_api::guarded(error, [&] {
    const uint8_t* const bytes = c_api::bytes_of(encoded, encoded_size).data();
    c_api::required(raw_size) = run_length::decoded_size(bytes, encoded_size);
  });
}

extern "C" bf16codecs_status bf16codecs_rle_decode(const void* encoded, size_t encoded_size,
                                                   void* out, size_t capacity, size_t* raw_size,
                                                   bf16codecs_error* error) {
  return c_api::guarded(error, [&] {
    const uint8_t* const bytes = c_api::bytes_of(encoded, encoded_size).data();
    const uint64_t size = run_length::decoded_size(bytes, encoded_size);
    run_length::decode(bytes, encoded_size, c_api::room_of(out, capacity, size), size);
    c_api::required(raw_size) = static_cast<size_t>(size);
  });
}
