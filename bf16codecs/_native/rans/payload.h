#pragma once

// How decoders read payloads whose words come last.

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

// The words. The last ones are moved to where a decoder can read past them.
class Words {
 public:
  // A decoder reads up to `most` bytes at a time.
  explicit Words(size_t most) : most_(most) {}
  void reset(const uint8_t* words, const uint8_t* end) { next = words, end_ = end; }

  // Makes room for reading `size` bytes from `next`.
  void prepare(size_t size) {
    const size_t left = this->left();
    if (left >= size || !tail_.empty()) return;
    // Whatever is used of them before they are seen to run out, `most` bytes follow.
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
