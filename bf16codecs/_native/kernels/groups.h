#pragma once

// Loops over groups of lanes, whose number the compiler has to know to keep the states in
// registers. Each file that includes this has a copy of its own, built for its instruction set.

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

}  // namespace
}  // namespace bf16codecs
