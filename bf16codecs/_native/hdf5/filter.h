#pragma once

#include <cstddef>

namespace bf16codecs {

// Encodes the chunk in *buf to a frame, or decodes it. Starts no thread. Reports an error on
// stderr; *buf is then unchanged and the result is 0. `caller` is an address in the calling
// libhdf5, or null: libhdf5 is asked for the size of the chunk.
size_t hdf5_filter(unsigned flags, size_t n_values, const unsigned values[], size_t nbytes,
                   size_t* buf_size, void** buf, const void* caller = nullptr);

}  // namespace bf16codecs
