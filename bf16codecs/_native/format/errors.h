#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

namespace bf16codecs {

// Exceptions that decoders throw because of their input. The bindings raise the Python class of the
// same name (bf16codecs/errors.py).
struct CodecError : std::runtime_error {
  using std::runtime_error::runtime_error;
};
struct CorruptDataError : CodecError {
  using CodecError::CodecError;
};
struct TruncatedDataError : CodecError {
  using CodecError::CodecError;
};
struct BaseMismatchError : CodecError {
  using CodecError::CodecError;
};
struct UnsupportedVersionError : CodecError {
  using CodecError::CodecError;
};

// "1 byte", "2 bytes", for messages.
inline std::string counted(uint64_t n, const char* noun) {
  return std::to_string(n) + " " + noun + (n == 1 ? "" : "s");
}

}  // namespace bf16codecs
