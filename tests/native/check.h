#pragma once

// What the tests of the native core share: a check, random numbers, memory between guards.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#if defined(__unix__) || defined(__APPLE__)
#include <sys/mman.h>
#include <unistd.h>
#define HAS_GUARDS 1
#endif

namespace bf16codecs::test {

using Bytes = std::vector<uint8_t>;

[[noreturn]] inline void fail(const char* what, const char* file, int line) {
  std::fflush(stdout);
  std::fprintf(stderr, "%s:%d: %s\n", file, line, what);
  std::exit(1);
}

#define CHECK(condition) \
  ((condition) ? void() : bf16codecs::test::fail(#condition, __FILE__, __LINE__))

// SplitMix64: integers alone, so that every platform tests the same.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t next() {
    uint64_t z = state_ += 0x9E3779B97F4A7C15;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9;
    z = (z ^ z >> 27) * 0x94D049BB133111EB;
    return z ^ z >> 31;
  }
  unsigned below(uint64_t n) { return static_cast<unsigned>(next() % n); }
  uint8_t byte() { return static_cast<uint8_t>(next()); }
  Bytes bytes(size_t n) {
    Bytes result(n);
    for (uint8_t& b : result) b = byte();
    return result;
  }

 private:
  uint64_t state_;
};

// Where a buffer lies in its arena: the guard is directly before it, or after it.
enum class Against { front, back };
inline constexpr Against kBothSides[] = {Against::front, Against::back};

// Memory between two pages that must not be touched: reading or writing there ends the program.
class Arena {
 public:
  explicit Arena(size_t capacity) {
#ifdef HAS_GUARDS
    const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    size_ = (capacity + page - 1) / page * page;
    void* map =
        mmap(nullptr, size_ + 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANON, -1, 0);
    CHECK(map != MAP_FAILED);
    begin_ = static_cast<uint8_t*>(map) + page;
    CHECK(mprotect(map, page, PROT_NONE) == 0);
    CHECK(mprotect(begin_ + size_, page, PROT_NONE) == 0);
#else
    size_ = capacity;
    begin_ = static_cast<uint8_t*>(std::malloc(capacity));
    CHECK(begin_ != nullptr);
#endif
  }
  Arena(const Arena&) = delete;  // lives as long as the program: nobody gives the pages back
  Arena& operator=(const Arena&) = delete;

  uint8_t* room(size_t size, Against side) {
    CHECK(size <= size_);
    return side == Against::front ? begin_ : begin_ + (size_ - size);
  }
  // Values, and `slack` bytes that a kernel may read after them.
  template <typename T>
  T* holding(const std::vector<T>& values, Against side, size_t slack = 0) {
    auto* const at = reinterpret_cast<T*>(room(sizeof(T) * values.size() + slack, side));
    for (size_t i = 0; i < values.size(); ++i) at[i] = values[i];
    return at;
  }

 private:
  uint8_t* begin_;
  size_t size_;
};

// What a kernel writes: `size` bytes, after which it may overwrite `slack`, and nothing else. On
// the side without a guard, bytes tell.
class Output {
 public:
  Output(Arena& arena, size_t size, size_t slack, Against side) : size_(size) {
    const size_t room = size + slack;
    uint8_t* const begin = arena.room(room + kWatched, side);
    data_ = side == Against::front ? begin : begin + kWatched;
    watched_ = side == Against::front ? begin + room : begin;
    std::fill_n(begin, room + kWatched, kUntouched);
  }

  uint8_t* data() const { return data_; }
  template <typename T>
  T* of() const {
    return reinterpret_cast<T*>(data_);
  }
  Bytes bytes() const {
    const auto is_untouched = [](uint8_t byte) { return byte == kUntouched; };
    CHECK(std::all_of(watched_, watched_ + kWatched, is_untouched));
    return {data_, data_ + size_};
  }
  template <typename T>
  std::vector<T> values() const {
    const Bytes all = bytes();
    std::vector<T> result(size_ / sizeof(T));
    std::copy(of<T>(), of<T>() + result.size(), result.begin());
    return result;
  }

 private:
  static constexpr size_t kWatched = 256;
  static constexpr uint8_t kUntouched = 0xA5;

  size_t size_;
  uint8_t *data_, *watched_;
};

}  // namespace bf16codecs::test
