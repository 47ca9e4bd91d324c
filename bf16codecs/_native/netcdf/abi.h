#pragma once

// The interface between netCDF-C's Zarr library and a codec. It is declared here because the plugin
// is built without netCDF's headers and links no libnetcdf. netCDF keeps this layout stable
// (netcdf_filter_build.h). It adds a codec's JSON to an HDF5 filter, and identifies the codec by
// the filter's number.

#include <cstddef>

#include "hdf5/abi.h"

extern "C" {

// NCZ_codec_t. The functions return 0 or an error of netCDF, and allocate results with malloc().
struct NetcdfCodec {
  int version;           // of this structure: kNetcdfCodecVersion
  int sort;              // kNetcdfHdf5Codec
  const char* codec_id;  // in a Zarr array's metadata
  unsigned filter_id;    // of the filter of HDF5
  void (*initialize)();  // after all plugins have been loaded
  void (*finalize)();
  // Called when an array is opened, and when one is created.
  int (*codec_to_hdf5)(const char* json, size_t* n_values, unsigned** values);
  int (*hdf5_to_codec)(size_t n_values, const unsigned* values, char** json);
  // Called before the first chunk is read or written: the filter gets the working values.
  int (*modify_parameters)(int group, int variable, size_t* n_values, unsigned** values,
                           size_t* n_working, unsigned** working);
};

}  // extern "C"

namespace bf16codecs {

inline constexpr int kNetcdfCodecVersion = 1;     // NCZ_CODEC_CLASS_VER
inline constexpr int kNetcdfHdf5Codec = 1;        // NCZ_CODEC_HDF5
inline constexpr int kNetcdfNoMemory = -61;       // NC_ENOMEM
inline constexpr int kNetcdfFilterFailed = -132;  // NC_EFILTER

// A codec for netCDF: a filter, and its name in arrays.
struct NetcdfPlugin {
  Hdf5FilterClass filter;
  NetcdfCodec codec;
};

// Name of the plugin's function that returns the NetcdfPlugin of a codec by its number, or null.
inline constexpr char kNetcdfPluginFunction[] = "h5bf16codecs_netcdf";
extern "C" typedef const NetcdfPlugin* (*FindNetcdfPlugin)(unsigned codec);

// netCDF's table holds one codec for each filter number. Huffman has the filter's number, and each
// other codec another one, which occurs in the table only, not in datasets or arrays.
constexpr int netcdf_filter_id(int hdf5_filter_id, unsigned codec) {
  return hdf5_filter_id + static_cast<int>(codec);
}

}  // namespace bf16codecs
