#pragma once

// Loops over groups of 32 lanes. Where the compiler knows how many groups there are, it keeps their
// states in registers. Each file that includes this has a copy of its own, built for its
// instruction set.

#include <type_traits>

#include "kernels/kernels.h"

namespace bf16codecs {
namespace {

// Calls `f` with the number of groups, which is 1, 2 or 4, as a constant.
template <typename F>
BF16CODECS_INLINE auto with_groups(unsigned groups, F f) {
  switch (groups) {
    case 1:
      return f(std::integral_constant<unsigned, 1>());
    case 2:
      return f(std::integral_constant<unsigned, 2>());
    default:
      return f(std::integral_constant<unsigned, 4>());
  }
}

// The states of a coder's groups while a kernel works on them. `Group` is an instruction set's type
// for the states of 32 lanes.
template <typename Group>
class States {
 public:
  template <typename Coder>
  BF16CODECS_INLINE explicit States(const Coder& coder) : n_(coder.groups) {
    for (unsigned g = 0; g < n_; ++g) groups_[g].load(coder.x + kLanesPerGroup * g);
  }
  // The group that codes a step, step mod groups, followed by those of the next steps. The number
  // of groups is a power of two.
  BF16CODECS_INLINE Group* of(size_t step) { return groups_ + (step & (n_ - 1)); }

  template <typename Coder>
  BF16CODECS_INLINE void store(Coder& coder) const {
    for (unsigned g = 0; g < n_; ++g) groups_[g].store(coder.x + kLanesPerGroup * g);
  }

 private:
  unsigned n_;
  Group groups_[kMaxGroups];
};

}  // namespace
}  // namespace bf16codecs
