#pragma once

// What memory had before blocks were written to it, so that it can be put back.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "threads/lock.h"
#include "workspace.h"

namespace bf16codecs {

// What was overwritten since clear(), by any number of threads, in memory that has to be there
// until then. Only words of eight bytes that change are noted and written: of 1 % of 16-bit values
// that change, they are 4 %, and copying all took a fifth of an update.
class UndoLog {
 public:
  // Replaces n bytes by others, or none if it throws std::bad_alloc; `room` is the thread's.
  void replace(uint8_t* memory, const uint8_t* items, size_t n, Scratch& room);
  // Notes n bytes that are about to be overwritten.
  void add(const uint8_t* memory, size_t n);
  // Puts all back.
  void undo();
  // Forgets all, and keeps memory for as much as is usual.
  void clear();

 private:
  // Memory for records, one after the other. A vector of all would need three times as much while
  // it grows.
  struct Segment {
    std::unique_ptr<uint64_t[]> words;
    size_t capacity, size = 0;
  };

  // Returns room for a record of `size` words, which is not part of the log until it is counted.
  Segment& with_room(size_t size);

  Mutex mutex_;
  std::vector<Segment> segments_;
  size_t filled_ = 0;  // segments that are full, at the front
};

}  // namespace bf16codecs
