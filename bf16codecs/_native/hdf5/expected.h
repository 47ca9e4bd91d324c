#pragma once

#include <cstddef>
#include <span>

namespace bf16codecs {

// Room that a decoded chunk of `size` bytes needs so that libhdf5 reads nothing past its end: its
// size, or more, to be filled with zeros, where it may be of one of several datasets. `values` are
// the filter's, and `caller` is an address in the code that called it. Throws CorruptDataError if
// the dataset has chunks of another size.
size_t room_for_chunk(size_t size, std::span<const unsigned> values, const void* caller);

// Forgets what is known of open datasets: for when the plugin is handed to a libhdf5, which may be
// one that was closed, and numbers its datasets anew.
void forget_datasets();

}  // namespace bf16codecs
