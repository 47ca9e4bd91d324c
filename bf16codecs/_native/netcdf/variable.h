#pragma once

#include <span>
#include <vector>

namespace bf16codecs {

// The filter's values for a variable in an open Zarr store: those of its configuration, and the
// size of its chunks. netCDF does not check the size that a filter returns, and would read past the
// end of a shorter chunk. `caller` is an address in the calling libnetcdf. Throws
// std::runtime_error if libnetcdf does not provide the size, or the filter cannot know it.
std::vector<unsigned> working_values(int group, int variable, std::span<const unsigned> values,
                                     const void* caller);

}  // namespace bf16codecs
