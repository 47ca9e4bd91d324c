#pragma once

// The boundary between C and the core: turns exceptions into statuses, and structures of other
// releases into those of this one.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <stdexcept>
#include <string>

#include "c_api/bf16codecs.h"
#include "format/errors.h"

namespace bf16codecs::c_api {

// The result does not fit the caller's memory.
struct NoRoomError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Returns the status of the exception that is being handled, and writes it to *error.
bf16codecs_status status_of_exception(bf16codecs_error* error) noexcept;

void clear(bf16codecs_error* error) noexcept;

// Calls function(), and returns its status.
template <typename Function>
bf16codecs_status guarded(bf16codecs_error* error, Function function) noexcept {
  try {
    function();
  } catch (...) {
    return status_of_exception(error);
  }
  clear(error);
  return BF16CODECS_OK;
}

template <typename Struct>
void check_struct(const Struct* given) {
  constexpr size_t kMost = 4096;  // a larger value is not a size but uninitialized memory
  if (given != nullptr && given->struct_size >= sizeof given->struct_size &&
      given->struct_size <= kMost) {
    return;
  }
  throw std::invalid_argument(
      "a structure is missing, or its struct_size: initialize it with its macro");
}

// Members that a caller of an earlier release does not know are those of `defaults`. Members that
// only a later release knows must be zero.
template <typename Struct>
Struct read_struct(const Struct* given, Struct defaults) {
  if (given == nullptr) return defaults;
  check_struct(given);
  const auto* const bytes = reinterpret_cast<const unsigned char*>(given);
  const size_t known = std::min(given->struct_size, sizeof defaults);
  const auto is_set = [](unsigned char byte) { return byte != 0; };
  if (std::any_of(bytes + known, bytes + given->struct_size, is_set)) {
    throw std::invalid_argument("a structure has more than this release knows: " +
                                std::string(bf16codecs_version()));
  }
  std::memcpy(&defaults, given, known);
  return defaults;
}

template <typename Struct>
void write_struct(Struct* given, Struct value) {
  check_struct(given);
  value.struct_size = given->struct_size;
  std::memset(given, 0, value.struct_size);
  std::memcpy(given, &value, std::min(value.struct_size, sizeof value));
}

template <typename Pointer>
Pointer& required(Pointer* pointer) {
  if (pointer == nullptr) throw std::invalid_argument("a pointer for a result is null");
  return *pointer;
}

// An opened object: a frame or a directory.
template <typename Opened>
const auto& index_of(const Opened* opened) {
  if (opened == nullptr) throw std::invalid_argument("nothing is open: the handle is null");
  return opened->index;
}

inline std::span<const uint8_t> bytes_of(const void* bytes, size_t size) {
  if (bytes == nullptr && size != 0) throw std::invalid_argument("the bytes are null");
  return {static_cast<const uint8_t*>(bytes), size};
}

// The caller's memory, checked for `wanted` bytes.
inline uint8_t* room_of(void* memory, size_t capacity, uint64_t wanted) {
  if (wanted > capacity) {
    throw NoRoomError("there is room for " + counted(capacity, "byte") + ", and " +
                      std::to_string(wanted) + " are needed");
  }
  if (memory == nullptr && wanted != 0) throw std::invalid_argument("the memory is null");
  return static_cast<uint8_t*>(memory);
}

}  // namespace bf16codecs::c_api
