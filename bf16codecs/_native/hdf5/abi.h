#pragma once

// The interface between libhdf5 and a filter plugin. It is declared here because the plugin is
// built without HDF5's headers and links no libhdf5, so that one file serves all versions from
// 1.8.11 on. HDF5 keeps this layout stable ("HDF5 Dynamically Loaded Filters", H5Zpublic.h and
// H5PLextern.h).

#include <cstddef>
#include <cstdint>

#if defined(_WIN32)
#define BF16CODECS_PLUGIN_EXPORT __declspec(dllexport)
#else
#define BF16CODECS_PLUGIN_EXPORT __attribute__((visibility("default")))
#endif

extern "C" {

// Before 1.10, identifiers have 32 bits: the plugin does not use them there.
typedef int64_t Hdf5Id;

// H5Z_set_local_func_t. Called when a dataset is created; a negative result refuses the dataset,
// even if the filter is optional.
typedef int (*Hdf5SetLocal)(Hdf5Id plist, Hdf5Id type, Hdf5Id space);

// H5Z_func_t. Returns the size of the data now in *buf, or 0 for a failure.
typedef size_t (*Hdf5Filter)(unsigned flags, size_t n_values, const unsigned values[],
                             size_t nbytes, size_t* buf_size, void** buf);

// H5Z_class2_t
struct Hdf5FilterClass {
  int version;  // of this structure: kHdf5FilterClassVersion
  int id;
  unsigned has_encoder;
  unsigned has_decoder;
  const char* name;
  void* can_apply;  // unused: libhdf5 ignores its result for optional filters
  Hdf5SetLocal set_local;
  Hdf5Filter filter;
};

}  // extern "C"

namespace bf16codecs {

inline constexpr int kHdf5FilterClassVersion = 1;  // H5Z_CLASS_T_VERS
inline constexpr int kHdf5PluginFilter = 0;        // H5PL_TYPE_FILTER

// Bits of `flags`.
inline constexpr unsigned kHdf5Optional = 0x0001;  // H5Z_FLAG_OPTIONAL
inline constexpr unsigned kHdf5Reverse = 0x0100;   // H5Z_FLAG_REVERSE: decode

}  // namespace bf16codecs
