#pragma once

#include "format/names.h"

namespace bf16codecs {

// The filter id of this plugin. libhdf5 takes one filter from each plugin file; the files of other
// ids are built from the same sources (CMakeLists.txt).
#if defined(BF16CODECS_HDF5_FILTER_ID)
inline constexpr int kOwnFilterId = BF16CODECS_HDF5_FILTER_ID;
#else
inline constexpr int kOwnFilterId = kHdf5FilterIds[0];
#endif

}  // namespace bf16codecs
