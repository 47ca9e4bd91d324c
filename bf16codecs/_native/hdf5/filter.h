#pragma once

#include <cstddef>

namespace bf16codecs {

// Encodes the chunk in *buf to a frame, or decodes it. Keeps no state and starts no thread. A
// failure is told on stderr, and leaves *buf as it was.
size_t hdf5_filter(unsigned flags, size_t n_values, const unsigned values[], size_t nbytes,
                   size_t* buf_size, void** buf);

}  // namespace bf16codecs
