#pragma once

#include <span>
#include <string>
#include <vector>

#include "format/names.h"

namespace bf16codecs {

// The reason why codec zstd cannot write.
inline constexpr char kNoZstandard[] =
    "the plugin has no Zstandard: write bf16codecs.zstd with the Python package, or choose another"
    " codec";

// The name of a codec in Zarr arrays, such as "bf16codecs.huffman".
std::string codec_id(Codec codec);

// The filter's values (docs/hdf5_filter.md, "cd_values") for a codec's configuration in an array of
// Zarr format 2, JSON text. Throws std::invalid_argument for configurations that the Python package
// refuses.
std::vector<unsigned> values_from_config(const char* json, Codec codec);

// The configuration that the Python package writes for the codec of these values. Throws
// std::invalid_argument for values that the filter refuses to encode with.
std::string config_from_values(std::span<const unsigned> values);

}  // namespace bf16codecs
