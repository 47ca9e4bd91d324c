#pragma once

#include <span>
#include <vector>

namespace bf16codecs {

// The values for the filter of a variable in an open Zarr store: those of its configuration, and
// the size of its chunks, which netCDF does not compare with what a filter returns: it would read
// past the end of a shorter chunk. `caller` is an address in the libnetcdf that called. Throws
// std::runtime_error where libnetcdf does not tell, and for chunks of which the filter cannot know
// the size.
std::vector<unsigned> working_values(int group, int variable, std::span<const unsigned> values,
                                     const void* caller);

}  // namespace bf16codecs
