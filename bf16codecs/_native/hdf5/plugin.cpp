// The two functions by which libhdf5 recognizes a plugin.

#include "hdf5/abi.h"
#include "hdf5/creation.h"
#include "hdf5/expected.h"
#include "hdf5/filter.h"
#include "hdf5/own_id.h"
#include "hdf5/report.h"

#if defined(_MSC_VER)
#include <intrin.h>
#define BF16CODECS_CALLER _ReturnAddress()
#else
#define BF16CODECS_CALLER __builtin_return_address(0)
#endif

namespace {

extern "C" size_t h5bf16codecs_filter(unsigned flags, size_t n_values, const unsigned values[],
                                      size_t nbytes, size_t* buf_size, void** buf) {
  return bf16codecs::hdf5_filter(flags, n_values, values, nbytes, buf_size, buf, BF16CODECS_CALLER);
}

extern "C" int h5bf16codecs_set_local(Hdf5Id plist, Hdf5Id type, Hdf5Id space);

void print_warning(const char* text) {
  bf16codecs::report("warning", text);
}

// The class that libhdf5 copies, followed by a callback that the Python package sets, to raise
// Python's warnings instead of printed ones.
struct {
  Hdf5FilterClass filter_class;
  bf16codecs::Warn warn;
} plugin_info = {
    {
        bf16codecs::kHdf5FilterClassVersion,
        bf16codecs::kOwnFilterId,
        1,
        1,
        "bf16codecs: lossless compression of floating-point numbers",
        nullptr,
        h5bf16codecs_set_local,
        h5bf16codecs_filter,
    },
    print_warning,
};

extern "C" int h5bf16codecs_set_local(Hdf5Id plist, Hdf5Id type, Hdf5Id) {
  return bf16codecs::settle_dataset(plist, type, BF16CODECS_CALLER, plugin_info.warn);
}

}  // namespace

extern "C" BF16CODECS_PLUGIN_EXPORT int H5PLget_plugin_type() {
  return bf16codecs::kHdf5PluginFilter;
}

extern "C" BF16CODECS_PLUGIN_EXPORT const void* H5PLget_plugin_info() {
  bf16codecs::forget_datasets();
  return &plugin_info;
}
