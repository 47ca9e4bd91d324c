#pragma once

// The offsets of a frame's blocks while they are encoded.

#include <cstdint>
#include <vector>

#include "threads/lock.h"

namespace bf16codecs {

// The offsets of blocks that several threads encode. A block's offset is known once all blocks
// before it have been encoded. Tasks begin in order, so the first block without an offset is always
// being encoded by a thread that waits for no other.
class BlockOffsets {
 public:
  explicit BlockOffsets(std::vector<uint64_t>& offsets) : offsets_(offsets) {}

  // The offset of block b, or 0 if it is not known yet.
  uint64_t if_known(size_t b) {
    const Lock lock(mutex_);
    return b < offsets_.size() ? offsets_[b] : 0;
  }

  // Waits until the offset of block b is known, and settles that of the next one. Returns the
  // offset of block b, or 0 after fail().
  uint64_t settle(size_t b, size_t size) {
    Lock lock(mutex_);
    settled_.wait(lock, [&] { return failed_ || b < offsets_.size(); });
    if (failed_) return 0;
    offsets_.push_back(offsets_[b] + size);
    settled_.notify_all();
    return offsets_[b];
  }

  void fail() {
    const Lock lock(mutex_);
    failed_ = true;
    settled_.notify_all();
  }

 private:
  Mutex mutex_;
  Condition settled_;
  std::vector<uint64_t>& offsets_;
  bool failed_ = false;
};

}  // namespace bf16codecs
