#pragma once

#include <cstddef>

namespace bf16codecs {

// Encodes the chunk in *buf to a frame, or decodes it. Starts no thread. An error is reported on
// stderr; *buf is then left unchanged and the result is 0.
size_t hdf5_filter(unsigned flags, size_t n_values, const unsigned values[], size_t nbytes,
                   size_t* buf_size, void** buf);

}  // namespace bf16codecs
