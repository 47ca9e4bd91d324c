#pragma once

#include <cstddef>
#include <span>

namespace bf16codecs {

// The memory that a decoded chunk of `size` bytes needs so that libhdf5 does not read past its end:
// `size`, or more, to be filled with zeros, if the chunk may belong to one of several datasets.
// `values` are the filter's cd_values; `caller` is an address in the calling libhdf5. Throws
// CorruptDataError if the dataset has chunks of another size.
size_t room_for_chunk(size_t size, std::span<const unsigned> values, const void* caller);

// Forgets all open datasets. To be called when a libhdf5 loads the plugin: it may have been closed
// before, and number its datasets anew.
void forget_datasets();

}  // namespace bf16codecs
