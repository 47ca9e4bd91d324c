#pragma once

#include <cstddef>
#include <span>

namespace bf16codecs {

// Room that a decoded chunk of `size` bytes needs so that libhdf5 reads nothing past its end: its
// size, or more, to be filled with zeros, where it may be of one of several datasets. `values` are
// the filter's, and `caller` is an address in the code that called it. Throws CorruptDataError if
// the dataset has chunks of another size.
size_t room_for_chunk(size_t size, std::span<const unsigned> values, const void* caller);

}  // namespace bf16codecs
