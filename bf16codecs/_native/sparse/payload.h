#pragma once

// The head of a sparse plane's payload (docs/format.md, "Sparse plane").

#include <cstddef>
#include <cstdint>

namespace bf16codecs::sparse {

inline constexpr size_t kZeroAt = 0, kValueAt = 1, kFlagsAt = 2, kZerosAt = 3, kExceptionsAt = 7;
inline constexpr size_t kHead = 11;
inline constexpr uint8_t kSignFlag = 1;
inline constexpr size_t kException = 5;  // bytes: the item's number, and its symbol

}  // namespace bf16codecs::sparse
