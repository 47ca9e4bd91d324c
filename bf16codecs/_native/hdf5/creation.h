#pragma once

#include "hdf5/abi.h"

namespace bf16codecs {

// Receives warnings about a dataset that is being created.
using Warn = void (*)(const char* text);

// Checks the parameters of a dataset that is being created. Errors must be found here, because
// libhdf5 stores chunks unfiltered if an optional filter fails later. Replaces kHdf5AutoDType by
// the dataset's dtype, adds the row of its chunks, and warns if the parameters name another dtype
// than the numbers have. `caller` is an address in the calling libhdf5. Returns 0, or -1 after an
// error, which it reports.
int settle_dataset(Hdf5Id plist, Hdf5Id type, const void* caller, Warn warn) noexcept;

}  // namespace bf16codecs
