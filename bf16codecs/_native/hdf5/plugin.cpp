// The two functions by which libhdf5 recognises a plugin.

#include "format/names.h"
#include "hdf5/abi.h"
#include "hdf5/expected.h"
#include "hdf5/filter.h"

#if defined(_MSC_VER)
#include <intrin.h>
#define BF16CODECS_CALLER _ReturnAddress()
#else
#define BF16CODECS_CALLER __builtin_return_address(0)
#endif

namespace {

extern "C" size_t h5bf16codecs_filter(unsigned flags, size_t n_values, const unsigned values[],
                                      size_t nbytes, size_t* buf_size, void** buf) {
  return bf16codecs::hdf5_filter(flags, n_values, values, nbytes, buf_size, buf,
                                 BF16CODECS_CALLER);
}

constexpr Hdf5FilterClass kFilterClass = {
    bf16codecs::kHdf5FilterClassVersion,
    bf16codecs::kHdf5FilterId,
    1,
    1,
    "bf16codecs: lossless compression of floating-point numbers",
    nullptr,
    nullptr,
    h5bf16codecs_filter,
};

}  // namespace

extern "C" BF16CODECS_PLUGIN_EXPORT int H5PLget_plugin_type() {
  return bf16codecs::kHdf5PluginFilter;
}

extern "C" BF16CODECS_PLUGIN_EXPORT const void* H5PLget_plugin_info() {
  bf16codecs::forget_datasets();
  return &kFilterClass;
}
