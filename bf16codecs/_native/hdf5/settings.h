#pragma once

#include <cstddef>

#include "options.h"

namespace bf16codecs {

// What a dataset's cd_values say (docs/hdf5_filter.md, "cd_values"). Values that are left out
// are 0. Throws std::invalid_argument for values that this release does not know.
EncodeOptions hdf5_settings(size_t n_values, const unsigned values[]);

// The size of a chunk of the dataset, or 0 if they do not say it.
size_t hdf5_chunk_size(size_t n_values, const unsigned values[]);

}  // namespace bf16codecs
