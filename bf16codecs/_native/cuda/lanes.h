#pragma once

// Lanes of the rANS modes: thread t has lane t of each group of 32.

#include "cuda/warp.h"
#include "cuda/window.h"
#include "kernels/lanes.h"

namespace bf16codecs::cuda {

// The states of kGroups groups, in registers. Loops over groups are unrolled.
template <unsigned kGroups>
class RegisterStates {
 public:
  static constexpr unsigned kUnrolled = kGroups;

  BF16CODECS_DEVICE unsigned groups() const { return kGroups; }
  BF16CODECS_DEVICE uint32_t get(unsigned g, unsigned t) const { return x_[g][t]; }
  BF16CODECS_DEVICE void set(unsigned g, unsigned t, uint32_t x) { x_[g][t] = x; }

 private:
  PerThread<uint32_t> x_[kGroups];
};

// The states of any number of groups, in shared memory: slower, with one loop for all numbers.
class SharedStates {
 public:
  static constexpr unsigned kUnrolled = 1;
  using Memory = Shared<4 * kMaxLanes>;

  BF16CODECS_DEVICE SharedStates(Memory& memory, unsigned groups)
      : memory_(memory), groups_(groups) {}

  BF16CODECS_DEVICE unsigned groups() const { return groups_; }
  BF16CODECS_DEVICE uint32_t get(unsigned g, unsigned t) const {
    return memory_.load<uint32_t>(4 * (kLanesPerGroup * g + t));
  }
  BF16CODECS_DEVICE void set(unsigned g, unsigned t, uint32_t x) {
    memory_.store(4 * (kLanesPerGroup * g + t), x);
  }

 private:
  Memory& memory_;
  const unsigned groups_;
};

// Lanes, and the words that they consume in turn.
template <typename States>
class Lanes {
 public:
  BF16CODECS_DEVICE Lanes(const Warp& warp, Window::Memory& memory, const States& of_lanes,
                          const uint8_t* words, const uint8_t* end)
      : states(of_lanes), warp_(warp), words_(warp, memory, words, end) {}

  // Reads the initial states, 4 bytes each; returns false if one is too small.
  BF16CODECS_DEVICE bool read_states(const uint8_t* first) {
    uint32_t bad = 0;
    BF16CODECS_UNROLLED_BY(States::kUnrolled)
    for (unsigned g = 0; g < states.groups(); ++g) {
      bad |= warp_.ballot([&](unsigned t) {
        const auto x = load_any<uint32_t>(first + 4 * (kLanesPerGroup * g + t));
        states.set(g, t, x);
        return x < kLowestState;
      });
    }
    return bad == 0;
  }

  // Loads the words for renormalizing the lanes of `groups` groups.
  BF16CODECS_DEVICE void prepare(unsigned groups) {
    words_.reach(used_, 2 * kLanesPerGroup * groups);
  }

  // Gives words to the lanes of a group that need them, in the order of the lanes.
  BF16CODECS_DEVICE void renormalize(unsigned g) {
    PerThread<bool> is_low;
    const uint32_t low = warp_.ballot([&](unsigned t) {
      is_low[t] = states.get(g, t) < kLowestState;
      return is_low[t];
    });
    warp_.each([&](unsigned t) {
      const uint32_t position = used_ + 2 * count_bits(low & threads_before(t));
      const uint32_t word = words_.load16(position % Window::kBytes), x = states.get(g, t);
      states.set(g, t, is_low[t] ? x << 16 | word : x);
    });
    used_ += 2 * count_bits(low);
  }

  // Whether exactly `bytes` of words were used, and all states are the encoder's initial ones.
  BF16CODECS_DEVICE bool is_finished(uint32_t bytes) const {
    uint32_t bad = 0;
    BF16CODECS_UNROLLED_BY(States::kUnrolled)
    for (unsigned g = 0; g < states.groups(); ++g) {
      bad |= warp_.ballot([&](unsigned t) { return states.get(g, t) != kLowestState; });
    }
    return bad == 0 && used_ == words_.begin() + bytes;
  }

  States states;

 private:
  const Warp& warp_;
  Window words_;
  uint32_t used_ = words_.begin();  // position of the next word
};

}  // namespace bf16codecs::cuda
