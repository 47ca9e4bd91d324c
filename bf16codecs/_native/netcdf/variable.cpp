#include "netcdf/variable.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

#include "format/errors.h"
#include "format/names.h"
#include "hdf5/library.h"
#include "hdf5/own_id.h"
#include "hdf5/settings.h"

namespace bf16codecs {
namespace {

// From netCDF's and HDF5's headers.
constexpr int kChunked = 0;         // NC_CHUNKED
constexpr int kNumbers = 11;        // NC_UINT64, the last type of numbers and characters
constexpr unsigned kShuffle = 2;    // H5Z_FILTER_SHUFFLE
constexpr size_t kMostValues = 64;  // more than any of our filters has

struct Api {
  int (*get_type)(int, int, int*);
  int (*get_type_size)(int, int, char*, size_t*);
  int (*get_ndims)(int, int, int*);
  int (*get_chunks)(int, int, int*, size_t*);
  int (*get_filters)(int, int, size_t*, unsigned*);
  int (*get_filter)(int, int, unsigned, size_t*, unsigned*);
};

bool find(const Library& library, Api& api) {
  return library.find("nc_inq_vartype", api.get_type) &&
         library.find("nc_inq_type", api.get_type_size) &&
         library.find("nc_inq_varndims", api.get_ndims) &&
         library.find("nc_inq_var_chunking", api.get_chunks) &&
         library.find("nc_inq_var_filter_ids", api.get_filters) &&
         library.find("nc_inq_var_filter_info", api.get_filter);
}

void check(int error) {
  if (error != 0) {
    throw std::runtime_error("netCDF does not tell of the variable: error " +
                             std::to_string(error));
  }
}

struct Chunks {
  size_t item_size = 0;
  std::vector<size_t> shape;  // of a chunk, in items

  uint64_t items() const {
    uint64_t n = 1;
    for (const size_t size : shape) {
      if (size != 0 && n > UINT64_MAX / size) return UINT64_MAX;
      n *= size;
    }
    return n;
  }
};

Chunks ask_chunks(const Api& api, int group, int variable) {
  Chunks chunks;
  int type = 0, rank = 0, storage = kChunked;
  check(api.get_type(group, variable, &type));
  if (type > kNumbers) {
    throw std::runtime_error("strings have no fixed size in netCDF: only numbers can be read");
  }
  check(api.get_type_size(group, type, nullptr, &chunks.item_size));
  check(api.get_ndims(group, variable, &rank));
  chunks.shape.resize(static_cast<size_t>(rank));
  if (rank == 0) return chunks;
  check(api.get_chunks(group, variable, &storage, chunks.shape.data()));
  if (storage != kChunked) throw std::runtime_error("netCDF does not tell the variable's chunks");
  return chunks;
}

// Whether the input of the filter with these values has the size of a chunk: it is the first
// filter, or follows only shuffle.
bool has_whole_chunks(const Api& api, int group, int variable, std::span<const unsigned> values) {
  size_t n = 0;
  check(api.get_filters(group, variable, &n, nullptr));
  std::vector<unsigned> ids(n);
  check(api.get_filters(group, variable, &n, ids.data()));
  const auto other = std::ranges::find_if(ids, [](unsigned id) { return id != kShuffle; });
  if (other == ids.end() || *other != kOwnFilterId) return false;
  if (std::ranges::count(ids, *other) == 1) return true;
  size_t n_first = 0;
  check(api.get_filter(group, variable, *other, &n_first, nullptr));
  if (n_first > kMostValues) return false;
  unsigned first[kMostValues];
  check(api.get_filter(group, variable, *other, &n_first, first));
  return std::ranges::equal(std::span(first, n_first), values);
}

unsigned chunk_nbytes(const Chunks& chunks) {
  const uint64_t items = chunks.items();
  if (items > UINT32_MAX / chunks.item_size) {
    throw std::runtime_error("its chunks have more than " + std::to_string(UINT32_MAX) +
                             " bytes, the most that a filter's parameters can hold");
  }
  return static_cast<unsigned>(items * chunks.item_size);
}

// The dtype for data that are not floating-point numbers, as the Python package chooses it.
DType dtype_for(size_t item_size) {
  if (item_size == 1) return DType::float8_e4m3fn;
  if (item_size == 4) return DType::float32;
  return item_size == 8 ? DType::float64 : DType::bfloat16;
}

}  // namespace

std::vector<unsigned> working_values(int group, int variable, std::span<const unsigned> values,
                                     const void* caller) {
  Api api{};
  if (!find(Library(caller), api)) {
    throw std::runtime_error("netCDF is linked into a program that hides its functions");
  }
  const Chunks chunks = ask_chunks(api, group, variable);
  std::vector<unsigned> working(values.begin(), values.end());
  working.resize(std::max(working.size(), kHdf5StepsAt + 1));
  const bool is_whole = has_whole_chunks(api, group, variable, values);
  working[kHdf5ChunkSizeAt] = is_whole ? chunk_nbytes(chunks) : 0;
  if (working[kHdf5DTypeAt] == kHdf5AutoDType) {
    working[kHdf5DTypeAt] = static_cast<unsigned>(dtype_for(chunks.item_size));
  }
  const std::vector<uint64_t> shape(chunks.shape.begin(), chunks.shape.end());
  working[kHdf5RowAt] = is_whole ? hdf5_row(shape, chunks.item_size, working) : 0;
  return working;
}

}  // namespace bf16codecs
