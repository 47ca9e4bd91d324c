#pragma once

#include <stdexcept>

namespace bf16codecs {

// Everything that encoded data can make a decoder raise. The bindings turn each into the
// Python class of the same name in bf16codecs/errors.py.
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
