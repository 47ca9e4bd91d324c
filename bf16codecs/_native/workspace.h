#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

namespace bf16codecs {

// Memory that grows with what is asked for, and has no values of its own: filling it would cost as
// much as using it.
class Scratch {
 public:
  Scratch() = default;
  Scratch(Scratch&& other) noexcept
      : memory_(std::move(other.memory_)), size_(std::exchange(other.size_, 0)) {}

  // At least `size` bytes, until the next call.
  uint8_t* at_least(size_t size) {
    if (size > size_) {
      size_ = 0;
      memory_.reset();
      memory_.reset(new uint8_t[size]);
      size_ = size;
    }
    return memory_.get();
  }

 private:
  std::unique_ptr<uint8_t[]> memory_;
  size_t size_ = 0;
};

// What one thread needs to code one block after another: 2.5 MiB for blocks of the default size,
// 21 MiB for the largest. It is lent from call to call (threads/pool.h), because memory that is
// fresh from the system takes as long to be mapped as a block to be coded.
struct Workspace {
  Scratch block;       // a block that is encoded before its place in the frame is known
  Scratch planes;      // a block's planes, and an encoder's payloads of them
  Scratch words;       // of a rANS plane, and its escapes
  Scratch code_pairs;  // the Huffman encoder's table of two symbols
};

}  // namespace bf16codecs
