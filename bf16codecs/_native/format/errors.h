#pragma once

#include <stdexcept>

namespace bf16codecs {

// What decoders throw because of their input. The bindings raise the Python class of the same
// name (bf16codecs/errors.py).
struct CodecError : std::runtime_error {
  using std::runtime_error::runtime_error;
};
struct CorruptDataError : CodecError {
  using CodecError::CodecError;
};
struct TruncatedDataError : CodecError {
  using CodecError::CodecError;
};
struct UnsupportedVersionError : CodecError {
  using CodecError::CodecError;
};

}  // namespace bf16codecs
