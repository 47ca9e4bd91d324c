#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

namespace bf16codecs {

// Memory that grows on demand and is not initialized: filling it would cost as much as using it.
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
  size_t size() const { return size_; }

 private:
  std::unique_ptr<uint8_t[]> memory_;
  size_t size_ = 0;
};

// Memory for one thread to code one block after another: up to 6.7 MiB for blocks of the default
// size, 54 MiB for the largest. It is lent from call to call (threads/pool.h): memory that is fresh
// from the system would make a block a quarter slower.
struct Workspace {
  // A block that is encoded before its offset in the frame is known; the numbers of an inner grid.
  Scratch block;
  Scratch planes;       // a block's planes, and an encoder's payloads of them
  Scratch words;        // of a rANS plane, and its escapes
  Scratch code_pairs;   // the Huffman encoder's table of two symbols
  Scratch values;       // in the grid mode, scales and offsets; its encoder's numbers and codes
  Scratch codes;        // in the grid mode's encoder, symbols, low bits, and these packed
  Scratch aside, undo;  // a block that will replace another, and what that had: see undo_log.h

  size_t size() const {
    return block.size() + planes.size() + words.size() + code_pairs.size() + values.size() +
           codes.size() + aside.size() + undo.size() + (inner_ ? inner_->size() : 0);
  }

  // For the block of an inner grid, while that of the outer one has this workspace.
  Workspace& inner() {
    if (!inner_) inner_ = std::make_unique<Workspace>();
    return *inner_;
  }

 private:
  std::unique_ptr<Workspace> inner_;
};

}  // namespace bf16codecs
