#pragma once

// Reading of payloads whose words come last: those of the tiles and difference modes
// (docs/format_tiles.md and docs/format_differences.md, "Payload of a block").

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "format/errors.h"
#include "format/little_endian.h"

namespace bf16codecs {

// Reads fields from the front of a payload.
class Fields {
 public:
  // `mode` begins the messages of errors.
  Fields(const char* mode, const uint8_t* bytes, size_t size)
      : next(bytes), mode_(mode), end_(bytes + size) {}

  // Throws CorruptDataError.
  const uint8_t* take(size_t size) {
    if (size > left()) {
      throw CorruptDataError(std::string(mode_) + ": a payload that is shorter than its parts");
    }
    next += size;
    return next - size;
  }
  template <typename T>
  T number() {
    return load_le<T>(take(sizeof(T)));
  }
  size_t left() const { return static_cast<size_t>(end_ - next); }
  const uint8_t* end() const { return end_; }

  const uint8_t* next;

 private:
  const char* mode_;
  const uint8_t* end_;
};

// The words of a payload. Kernels read a fixed number of bytes a step, which may be more than they
// use, so that the last words are moved to memory that goes on after them.
//
// Before each call of a kernel, next <= end: after the call before, overrun() was checked.
// prepare() makes sure that the kernel's bytes are readable from there on, in the payload or in the
// copy, where `most` bytes of zeros follow the words. So even damaged data, which use more words
// than there are, read nothing outside, and are rejected after the call.
class Words {
 public:
  // A decoder reads up to `most` bytes a call.
  explicit Words(size_t most) : most_(most) {}
  void reset(const uint8_t* words, const uint8_t* end) { next = words, end_ = end; }

  // Makes room for reading `size` bytes from `next`.
  void prepare(size_t size) {
    const size_t left = this->left();
    if (left >= size || !tail_.empty()) return;
    tail_.resize(left + most_);
    std::memcpy(tail_.data(), next, left);
    reset(tail_.data(), tail_.data() + left);
  }
  size_t left() const { return static_cast<size_t>(end_ - next); }
  bool overrun() const { return next > end_; }

  const uint8_t* next = nullptr;

 private:
  const size_t most_;
  const uint8_t* end_ = nullptr;
  std::vector<uint8_t> tail_;
};

}  // namespace bf16codecs
