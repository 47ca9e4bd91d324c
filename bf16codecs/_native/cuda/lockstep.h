#pragma once

// A warp on a CPU, for tests: see warp.h. Its threads take turns, and accesses to shared memory are
// checked for races: since the last sync(), no thread may read what another wrote, or write what
// another read or wrote.

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#define BF16CODECS_DEVICE inline
#define BF16CODECS_ROLLED
#define BF16CODECS_UNROLLED
#define BF16CODECS_UNROLLED_BY(n)
// Memory of parts that are used one after the other; here, each part has memory of its own.
#define BF16CODECS_ONE_OF struct

namespace bf16codecs::cuda {

// The running thread, and the number of synchronizations so far.
struct Turn {
  static constexpr unsigned kAll = 32;  // code that is the same for all threads
  unsigned thread = kAll;
  uint32_t epoch = 1;
};
inline thread_local Turn turn;

// Starts with arbitrary content, as on a GPU.
template <typename T>
class PerThread {
 public:
  PerThread() { std::memset(static_cast<void*>(values_), 0xA5, sizeof values_); }
  T& operator[](unsigned t) { return values_[t]; }
  const T& operator[](unsigned t) const { return values_[t]; }

 private:
  T values_[32];
};

class Warp {
 public:
  // Runs the threads backwards if the test wants the other order.
  explicit Warp(bool backwards = false) : backwards_(backwards) {}

  template <typename Function>
  void each(Function function) const {
    expect_all();
    for (unsigned i = 0; i < 32; ++i) {
      turn.thread = backwards_ ? 31 - i : i;
      function(turn.thread);
    }
    turn.thread = Turn::kAll;
  }
  template <typename Function>
  void once(Function function) const {
    expect_all();
    turn.thread = 0;
    function();
    turn.thread = Turn::kAll;
  }
  template <typename Function>
  uint32_t ballot(Function function) const {
    uint32_t bits = 0;
    each([&](unsigned t) { bits |= uint32_t{bool(function(t))} << t; });
    return bits;
  }
  template <typename T, typename Function>
  PerThread<T> shuffle(const PerThread<T>& values, Function source) const {
    PerThread<T> result;
    each([&](unsigned t) { result[t] = values[source(t) % 32]; });
    return result;
  }
  template <typename T>
  T of(const PerThread<T>& values, unsigned t) const {
    expect_all();
    return values[t];
  }
  template <typename T>
  T same(T value) const {
    expect_all();
    return value;
  }
  PerThread<uint32_t> sums_before(const PerThread<uint32_t>& values, uint32_t& total) const {
    expect_all();
    PerThread<uint32_t> result;
    total = 0;
    for (unsigned t = 0; t < 32; total += values[t++]) result[t] = total;
    return result;
  }
  void sync() const {
    expect_all();
    ++turn.epoch;
  }
  uint32_t count_up(uint32_t* counter, uint32_t by = 1) const {
    expect_all();
    const uint32_t before = *counter;
    *counter += by;
    return before;
  }

 private:
  // On a GPU, this thread would wait for the others forever.
  static void expect_all() {
    if (turn.thread == Turn::kAll) return;
    std::fprintf(stderr, "lockstep: thread %u alone does what all do together\n", turn.thread);
    std::abort();
  }

  const bool backwards_;
};

template <unsigned n>
class Shared {
 public:
  template <typename T>
  T load(unsigned at) const {
    check_offset<T>(at);
    for (unsigned i = at; i < at + sizeof(T); ++i) {
      if (writer_[i].epoch == turn.epoch && !is_same(writer_[i].thread)) fail("reads", i);
      if (reader_[i].epoch != turn.epoch) {
        reader_[i] = {turn.epoch, static_cast<uint8_t>(turn.thread)};
      } else if (!is_same(reader_[i].thread)) {
        reader_[i].thread = Turn::kAll;
      }
    }
    T value;
    std::memcpy(&value, bytes_ + at, sizeof value);
    return value;
  }
  template <typename T>
  void store(unsigned at, T value) {
    check_offset<T>(at);
    for (unsigned i = at; i < at + sizeof(T); ++i) {
      if (writer_[i].epoch == turn.epoch && !is_same(writer_[i].thread)) fail("writes", i);
      if (reader_[i].epoch == turn.epoch && !is_same(reader_[i].thread)) fail("overwrites", i);
      writer_[i] = {turn.epoch, static_cast<uint8_t>(turn.thread)};
    }
    std::memcpy(bytes_ + at, &value, sizeof value);
  }

 private:
  struct Use {
    uint32_t epoch = 0;
    uint8_t thread = 0;
  };

  static bool is_same(unsigned thread) { return thread == turn.thread; }

  template <typename T>
  void check_offset(unsigned at) const {
    if (at % alignof(T) != 0 || at + sizeof(T) > n) fail("has no such offset:", at);
  }
  [[noreturn]] void fail(const char* what, unsigned at) const {
    std::fprintf(stderr, "lockstep: thread %u %s byte %u of %u, which another one uses\n",
                 turn.thread, what, at, n);
    std::abort();
  }

  alignas(16) uint8_t bytes_[n] = {};
  mutable Use writer_[n], reader_[n];
};

template <typename T>
T load_until(const uint8_t* p, uint32_t at, uint32_t size) {
  T value = {};
  if (at < size) std::memcpy(&value, p + at, std::min<size_t>(sizeof value, size - at));
  return value;
}
inline uint32_t load_word_until(const uint8_t* p, uint32_t at, uint32_t size) {
  return load_until<uint32_t>(p, at, size);
}
inline Quad load_quad_until(const uint8_t* p, uint32_t at, uint32_t size) {
  return load_until<Quad>(p, at, size);
}

template <unsigned n>
void copy_quad_until(Shared<n>& to, unsigned to_at, const uint8_t* p, uint32_t at, uint32_t size) {
  to.store(to_at, load_quad_until(p, at, size));
}
template <unsigned kGroups>
void wait_for_copies() {}

template <typename T>
T load_any(const uint8_t* p) {
  T value;
  std::memcpy(&value, p, sizeof value);
  return value;
}

template <typename T>
void store_aligned(uint8_t* p, T value) {
  if (reinterpret_cast<uintptr_t>(p) % alignof(T) != 0) std::abort();
  std::memcpy(p, &value, sizeof value);
}

inline void store_if(bool condition, uint8_t* p, unsigned at, const Quad& quad) {
  if (condition) store_aligned(p + at, quad);
}

inline uint32_t pick_bytes(uint32_t a, uint32_t b, uint32_t which) {
  const uint64_t all = uint64_t{b} << 32 | a;
  uint32_t result = 0;
  for (unsigned i = 0; i < 4; ++i) {
    result |= static_cast<uint32_t>(all >> 8 * (which >> 4 * i & 7) & 255) << 8 * i;
  }
  return result;
}

inline uint32_t pick_by(uint32_t mask, uint32_t a, uint32_t b) {
  return (a & mask) | (b & ~mask);
}

inline uint32_t pick_bits(uint32_t low, uint32_t high, unsigned from) {
  return static_cast<uint32_t>((uint64_t{high} << 32 | low) >> from % 32);
}

inline uint32_t shift_left(uint32_t low, uint32_t high, unsigned by) {
  return static_cast<uint32_t>((uint64_t{high} << 32 | low) << by % 32 >> 32);
}

inline uint32_t dot_product(uint32_t a, uint32_t b) {
  return (a & 0xFFFF) * (b & 255) + (a >> 16) * (b >> 8 & 255);
}

inline unsigned count_bits(uint32_t v) {
  return static_cast<unsigned>(std::popcount(v));
}
inline unsigned last_bit(uint32_t v) {
  return 31 - static_cast<unsigned>(std::countl_zero(v));
}

}  // namespace bf16codecs::cuda
