// The HDF5 plugin's functions for netCDF-C's Zarr library: docs/hdf5_filter.md, "netCDF".

#include <cstdlib>
#include <cstring>
#include <exception>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

#include "format/names.h"
#include "hdf5/filter.h"
#include "hdf5/own_id.h"
#include "hdf5/report.h"
#include "hdf5/settings.h"
#include "netcdf/abi.h"
#include "netcdf/config.h"
#include "netcdf/variable.h"

#if defined(_MSC_VER)
#include <intrin.h>
#define BF16CODECS_CALLER _ReturnAddress()
#else
#define BF16CODECS_CALLER __builtin_return_address(0)
#endif

namespace bf16codecs {
namespace {

// Calls `function`; reports an exception, and returns an error of netCDF for it.
template <typename Function>
int guarded(const char* failure, Function function) noexcept {
  try {
    function();
    return 0;
  } catch (const std::bad_alloc&) {
    report(failure, "not enough memory");
    return kNetcdfNoMemory;
  } catch (const std::exception& error) {
    report(failure, error.what());
    return kNetcdfFilterFailed;
  }
}

// Allocates memory that netCDF frees.
template <typename T>
T* copied(const T* items, size_t n) {
  T* const copy = static_cast<T*>(std::malloc(n * sizeof(T)));
  if (copy == nullptr) throw std::bad_alloc();
  std::memcpy(copy, items, n * sizeof(T));
  return copy;
}

template <Codec codec>
int codec_to_hdf5(const char* json, size_t* n_values, unsigned** values) {
  return guarded("netCDF variable not opened", [&] {
    std::vector<unsigned> found{kHdf5Refused};
    try {
      found = values_from_config(json, codec);
    } catch (const std::invalid_argument& error) {
      report("netCDF variable will not be read", (codec_id(codec) + ": " + error.what()).c_str());
    }
    *values = copied(found.data(), found.size());
    *n_values = found.size();
  });
}

int hdf5_to_codec(size_t n_values, const unsigned* values, char** json) {
  return guarded("netCDF variable not created", [&] {
    const std::string text = config_from_values({values, n_values});
    *json = copied(text.c_str(), text.size() + 1);
  });
}

int modify_parameters(int group, int variable, size_t* n_values, unsigned** values,
                      size_t* n_working, unsigned** working) {
  const void* const caller = BF16CODECS_CALLER;
  return guarded("netCDF variable not accessible", [&] {
    std::vector<unsigned> found{kHdf5Refused};
    if (*n_values == 0 || (*values)[kHdf5CodecAt] != kHdf5Refused) {
      found = working_values(group, variable, {*values, *n_values}, caller);
    }
    unsigned* const copy = copied(found.data(), found.size());
    std::free(*working);
    *working = copy;
    *n_working = found.size();
  });
}

size_t filter_chunk(unsigned flags, size_t n_values, const unsigned values[], size_t nbytes,
                    size_t* buf_size, void** buf) {
  if ((flags & kHdf5Reverse) == 0 && n_values > 0 &&
      values[kHdf5CodecAt] == static_cast<unsigned>(Codec::zstd)) {
    report("chunk not encoded", kNoZstandard);
    return 0;
  }
  return hdf5_filter(flags, n_values, values, nbytes, buf_size, buf);
}

// Datasets have the filter's number.
template <Codec codec>
int refuse_dataset(Hdf5Id, Hdf5Id, Hdf5Id) {
  const int id = netcdf_filter_id(kOwnFilterId, static_cast<unsigned>(codec));
  guarded("HDF5 dataset not created", [&] {
    throw std::invalid_argument("filter " + std::to_string(id) +
                                " is for netCDF's Zarr alone: use " + std::to_string(kOwnFilterId));
  });
  return -1;
}

void settle_ids();

template <Codec codec>
NetcdfCodec make_codec(const char* id, int filter_id) {
  return {kNetcdfCodecVersion,
          kNetcdfHdf5Codec,
          id,
          static_cast<unsigned>(filter_id),
          settle_ids,
          nullptr,
          codec_to_hdf5<codec>,
          hdf5_to_codec,
          modify_parameters};
}

template <Codec codec>
NetcdfPlugin make_plugin(const char* id) {
  const int filter_id = netcdf_filter_id(kOwnFilterId, static_cast<unsigned>(codec));
  return {
      {kHdf5FilterClassVersion, filter_id, 1, 1, id, nullptr, refuse_dataset<codec>, filter_chunk},
      make_codec<codec>(id, filter_id)};
}

const NetcdfCodec huffman = make_codec<Codec::huffman>("bf16codecs.huffman", kOwnFilterId);
struct {
  Codec codec;
  NetcdfPlugin plugin;
} others[] = {{Codec::split, make_plugin<Codec::split>("bf16codecs.split")},
              {Codec::arithmetic, make_plugin<Codec::arithmetic>("bf16codecs.arithmetic")},
              {Codec::zstd, make_plugin<Codec::zstd>("bf16codecs.zstd")}};

// Gives all codecs the number of the filter. Once codecs are in its table, netCDF looks them up by
// name alone; it shows the number to users, and writes it to HDF5 files when it copies arrays, so
// it must be the one that all programs know. netCDF does not call this for the last plugin of the
// table, so each call handles all codecs.
void settle_ids() {
  for (auto& other : others) other.plugin.codec.filter_id = static_cast<unsigned>(kOwnFilterId);
}

}  // namespace
}  // namespace bf16codecs

extern "C" BF16CODECS_PLUGIN_EXPORT const void* NCZ_get_codec_info() {
  return &bf16codecs::huffman;
}

extern "C" BF16CODECS_PLUGIN_EXPORT const bf16codecs::NetcdfPlugin* h5bf16codecs_netcdf(
    unsigned codec) {
  for (auto& other : bf16codecs::others) {
    if (static_cast<unsigned>(other.codec) != codec) continue;
    // netCDF may load plugins again, and then needs the number of its table.
    other.plugin.codec.filter_id = static_cast<unsigned>(other.plugin.filter.id);
    return &other.plugin;
  }
  return nullptr;
}
