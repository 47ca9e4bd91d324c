#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "c_api/bf16codecs.h"

namespace bf16codecs {

// Parses a dataset's cd_values (docs/hdf5_filter.md, "cd_values"). Missing values are 0. Throws
// std::invalid_argument for values that this release does not know.
bf16codecs_encode_options hdf5_settings(size_t n_values, const unsigned values[]);

// In place of a codec, if netCDF's configuration of an array was refused. An error before a chunk
// is read would keep netCDF from opening any array of the store.
inline constexpr unsigned kHdf5Refused = 0xFFFFFFFF;

// Indices in cd_values: docs/hdf5_filter.md.
inline constexpr size_t kHdf5CodecAt = 0, kHdf5DTypeAt = 1, kHdf5FlagsAt = 2, kHdf5LevelAt = 3,
                        kHdf5ChunkSizeAt = 4, kHdf5RowAt = 5, kHdf5StepsAt = 6,
                        kHdf5KnownValues = 7;

// Throws std::invalid_argument unless the steps divide a chunk of `nbytes` into whole items.
// `which` names the chunk in the message.
void check_steps(size_t nbytes, const bf16codecs_encode_options& options, const char* which = "it");

// The items in a row of a chunk, as the Python package computes them: 0 if the codec that `values`
// choose makes no use of rows, or if their dtype is not one of items of this size.
unsigned hdf5_row(std::span<const uint64_t> chunk_shape, size_t item_size,
                  std::span<const unsigned> values);

// The size of the dataset's chunks in bytes, or 0 if the values do not include it.
size_t hdf5_chunk_size(size_t n_values, const unsigned values[]);

}  // namespace bf16codecs
