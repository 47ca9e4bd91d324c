#pragma once

// The warp of a GPU: see warp.h. Only NVRTC compiles this.

#include <cstddef>
#include <cstdint>

#define BF16CODECS_DEVICE __device__ __forceinline__
#define BF16CODECS_PRAGMA(text) _Pragma(#text)
#define BF16CODECS_ROLLED BF16CODECS_PRAGMA(unroll 1)
#define BF16CODECS_UNROLLED BF16CODECS_PRAGMA(unroll)
#define BF16CODECS_UNROLLED_BY(n) BF16CODECS_PRAGMA(unroll(n))
// Memory shared by parts that are used one after the other.
#define BF16CODECS_ONE_OF union

namespace bf16codecs::cuda {

inline constexpr unsigned kAllThreads = ~0u;

template <typename T>
class PerThread {
 public:
  BF16CODECS_DEVICE T& operator[](unsigned) { return value_; }
  BF16CODECS_DEVICE const T& operator[](unsigned) const { return value_; }

 private:
  T value_;
};

class Warp {
 public:
  BF16CODECS_DEVICE explicit Warp(unsigned thread) : thread_(thread) {}

  template <typename Function>
  BF16CODECS_DEVICE void each(Function function) const {
    function(thread_);
  }
  // Runs the function in one thread.
  template <typename Function>
  BF16CODECS_DEVICE void once(Function function) const {
    if (thread_ == 0) function();
  }
  // Bit t of the result is that of thread t.
  template <typename Function>
  BF16CODECS_DEVICE uint32_t ballot(Function function) const {
    return __ballot_sync(kAllThreads, function(thread_));
  }
  // Thread t gets the value of thread source(t).
  template <typename T, typename Function>
  BF16CODECS_DEVICE PerThread<T> shuffle(const PerThread<T>& values, Function source) const {
    PerThread<T> result;
    result[0] = __shfl_sync(kAllThreads, values[0], source(thread_));
    return result;
  }
  // Broadcasts the value of one thread.
  template <typename T>
  BF16CODECS_DEVICE T of(const PerThread<T>& values, unsigned t) const {
    return __shfl_sync(kAllThreads, values[0], t);
  }
  // Broadcasts a loaded value that is equal in all threads, which the compiler cannot know: after a
  // branch on such a value, it would synchronize the threads before each operation of the warp.
  template <typename T>
  BF16CODECS_DEVICE T same(T value) const {
    if constexpr (sizeof(T) < 4) {
      return static_cast<T>(same(static_cast<uint32_t>(value)));
    } else if constexpr (sizeof(T) <= 8) {
      return __shfl_sync(kAllThreads, value, 0);
    } else {
      static_assert(sizeof(T) % 4 == 0);
      auto* const words = reinterpret_cast<uint32_t*>(&value);
      BF16CODECS_UNROLLED
      for (unsigned i = 0; i < sizeof(T) / 4; ++i) words[i] = same(words[i]);
      return value;
    }
  }
  // For each thread, the sum over the threads before it; and the total.
  BF16CODECS_DEVICE PerThread<uint32_t> sums_before(const PerThread<uint32_t>& values,
                                                    uint32_t& total) const {
    uint32_t sum = values[0];
    BF16CODECS_UNROLLED
    for (unsigned distance = 1; distance < 32; distance *= 2) {
      const uint32_t before = __shfl_up_sync(kAllThreads, sum, distance);
      if (thread_ >= distance) sum += before;
    }
    total = __shfl_sync(kAllThreads, sum, 31);
    PerThread<uint32_t> result;
    result[0] = sum - values[0];
    return result;
  }
  BF16CODECS_DEVICE void sync() const { __syncwarp(); }

  // Increments a counter that all warps share; returns its previous value.
  BF16CODECS_DEVICE uint32_t count_up(uint32_t* counter, uint32_t by = 1) const {
    uint32_t before = 0;
    if (thread_ == 0) before = atomicAdd(counter, by);
    return __shfl_sync(kAllThreads, before, 0);
  }

 private:
  const unsigned thread_;
};

// Memory that the threads of a warp share.
template <unsigned n>
class Shared {
 public:
  template <typename T>
  BF16CODECS_DEVICE T load(unsigned at) const {
    return *reinterpret_cast<const T*>(bytes_ + at);
  }
  template <typename T>
  BF16CODECS_DEVICE void store(unsigned at, T value) {
    *reinterpret_cast<T*>(bytes_ + at) = value;
  }
  // An address within shared memory.
  BF16CODECS_DEVICE uint32_t address(unsigned at) const {
    return static_cast<uint32_t>(__cvta_generic_to_shared(bytes_ + at));
  }

 private:
  alignas(16) uint8_t bytes_[n];
};

// Aligned loads, with zeros if `at` is not below `size`. A word or quad that contains a byte of a
// payload lies entirely in the payload's memory.
BF16CODECS_DEVICE uint32_t load_word_until(const uint8_t* p, uint32_t at, uint32_t size) {
  const auto* const word = reinterpret_cast<const uint32_t*>(p + at);
  __builtin_assume(__isGlobal(word));
  return at < size ? *word : 0;
}
BF16CODECS_DEVICE Quad load_quad_until(const uint8_t* p, uint32_t at, uint32_t size) {
  const auto* const quad = reinterpret_cast<const Quad*>(p + at);
  __builtin_assume(__isGlobal(quad));
  return at < size ? *quad : Quad{};
}

// Copies an aligned quad to shared memory, of which a byte lies in a payload. The copy is under way
// until wait_for_copies() says otherwise. (The CPU's copies end at `size`.)
template <unsigned n>
BF16CODECS_DEVICE void copy_quad_until(Shared<n>& to, unsigned to_at, const uint8_t* p, uint32_t at,
                                       uint32_t) {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to.address(to_at)), "l"(p + at)
               : "memory");
#else
  to.store(to_at, load_quad_until(p, at, at + 1));
#endif
}

// Ends a group of this thread's copies, and waits until at most kGroups groups are under way.
template <unsigned kGroups>
BF16CODECS_DEVICE void wait_for_copies() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group; cp.async.wait_group %0;" ::"n"(kGroups) : "memory");
#endif
}

// Loads the aligned word that contains the byte at p.
BF16CODECS_DEVICE uint32_t load_word(const uint8_t* p) {
  const auto* const word =
      reinterpret_cast<const uint32_t*>(p - reinterpret_cast<uintptr_t>(p) % 4);
  __builtin_assume(__isGlobal(word));
  return *word;
}

// The bits of a where the mask is set, and of b elsewhere.
BF16CODECS_DEVICE uint32_t pick_by(uint32_t mask, uint32_t a, uint32_t b) {
  uint32_t result;  // C++ would compile to two instructions
  asm("lop3.b32 %0, %1, %2, %3, 0xCA;" : "=r"(result) : "r"(mask), "r"(a), "r"(b));
  return result;
}

// 32 of the 64 bits of two words, from bit `from` modulo 32 of the lower word on.
BF16CODECS_DEVICE uint32_t pick_bits(uint32_t low, uint32_t high, unsigned from) {
  return __funnelshift_r(low, high, from);
}

// The first 32 of the 64 bits of two words, shifted by `by` modulo 32.
BF16CODECS_DEVICE uint32_t shift_left(uint32_t low, uint32_t high, unsigned by) {
  return __funnelshift_l(low, high, by);
}

// Loads a number from any address of the device's memory.
template <typename T>
BF16CODECS_DEVICE T load_any(const uint8_t* p) {
  if constexpr (sizeof(T) == 1) {
    __builtin_assume(__isGlobal(p));
    return *p;
  } else {
    const unsigned skipped = 8 * (reinterpret_cast<uintptr_t>(p) % 4);
    const uint32_t last = load_word(p + sizeof(T) - 1);
    if constexpr (sizeof(T) < 8) {
      return static_cast<T>(pick_bits(load_word(p), last, skipped));
    } else {
      const uint32_t middle = load_word(p + 4);
      const uint32_t high = pick_bits(middle, last, skipped);
      return static_cast<T>(high) << 32 | pick_bits(load_word(p), middle, skipped);
    }
  }
}

// Stores a number at an address that is a multiple of its size.
template <typename T>
BF16CODECS_DEVICE void store_aligned(uint8_t* p, T value) {
  __builtin_assume(__isGlobal(p));
  *reinterpret_cast<T*>(p) = value;
}

// Stores a quad at p + at, which is a multiple of its size, on a condition, but without a branch.
BF16CODECS_DEVICE void store_if(bool condition, uint8_t* p, unsigned at, const Quad& quad) {
  asm volatile(
      "{ .reg .pred wanted; setp.ne.u32 wanted, %0, 0;"
      " @wanted st.global.v4.u32 [%1], {%2, %3, %4, %5}; }" ::"r"(unsigned{condition}),
      "l"(p + at), "r"(quad.word[0]), "r"(quad.word[1]), "r"(quad.word[2]), "r"(quad.word[3])
      : "memory");
}

// Selects four of the bytes of a, numbered 0 to 3, and b, 4 to 7. The lowest four bits of the
// selector choose the lowest byte.
BF16CODECS_DEVICE uint32_t pick_bytes(uint32_t a, uint32_t b, uint32_t which) {
  return __byte_perm(a, b, which);
}

// The sum of the 16-bit halves of a times bytes 0 and 1 of b.
BF16CODECS_DEVICE uint32_t dot_product(uint32_t a, uint32_t b) {
  return __dp2a_lo(a, b, 0u);
}

BF16CODECS_DEVICE unsigned count_bits(uint32_t v) {
  return static_cast<unsigned>(__popc(v));
}
// The index of the highest set bit; the argument must not be 0.
BF16CODECS_DEVICE unsigned last_bit(uint32_t v) {
  return 31 - static_cast<unsigned>(__clz(static_cast<int>(v)));
}

}  // namespace bf16codecs::cuda
