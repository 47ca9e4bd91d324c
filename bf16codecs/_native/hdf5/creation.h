#pragma once

#include "hdf5/abi.h"

namespace bf16codecs {

// Is told a warning about a dataset that is being created.
using Warn = void (*)(const char* text);

// Looks at the parameters of a dataset that is being created. Wrong ones of an optional filter are
// refused here, because libhdf5 stores chunks without one that refuses them later. Puts the
// dataset's own dtype in the place of kHdf5AutoDType, and warns where numbers are encoded by
// another one. `caller` is an address in the libhdf5 that called. Returns 0, or -1 after an error,
// which it reports.
int settle_dataset(Hdf5Id plist, Hdf5Id type, const void* caller, Warn warn) noexcept;

}  // namespace bf16codecs
