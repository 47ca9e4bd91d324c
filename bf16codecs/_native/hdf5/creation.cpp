#include "hdf5/creation.h"

#include <algorithm>
#include <exception>
#include <iterator>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "format/names.h"
#include "hdf5/library.h"
#include "hdf5/own_id.h"
#include "hdf5/report.h"
#include "hdf5/settings.h"

namespace bf16codecs {
namespace {

// From HDF5's headers.
constexpr int kFloat = 1, kCompound = 6, kComplex = 11;  // H5T_class_t
constexpr int kMaxRank = 33;                             // H5S_MAX_RANK, and the size of an item
constexpr size_t kMaxValues = 64;
// Filters of libhdf5 that interpret their input as the dataset's numbers: H5Z_FILTER_SZIP, _NBIT
// and _SCALEOFFSET.
struct OfNumbers {
  int id;
  const char* name;
};
constexpr OfNumbers kOfNumbers[] = {{4, "szip"}, {5, "n-bit"}, {6, "scale-offset"}};

struct Api {
  int (*get_libversion)(unsigned*, unsigned*, unsigned*);
  int (*get_nfilters)(Hdf5Id);
  int (*get_filter)(Hdf5Id, unsigned, unsigned*, size_t*, unsigned*, size_t, char*, unsigned*);
  int (*modify_filter)(Hdf5Id, int, unsigned, size_t, const unsigned*);
  int (*get_chunk)(Hdf5Id, int, unsigned long long*);
  int (*get_class)(Hdf5Id);
  size_t (*get_size)(Hdf5Id);
  int (*get_fields)(Hdf5Id, size_t*, size_t*, size_t*, size_t*, size_t*);
  int (*get_nmembers)(Hdf5Id);
  int (*get_member_class)(Hdf5Id, unsigned);
  int (*push_error)(Hdf5Id, const char*, const char*, unsigned, Hdf5Id, Hdf5Id, Hdf5Id, const char*,
                    ...);
  const Hdf5Id *error_class, *pipeline, *set_local;
};

bool find(const Library& library, Api& api) {
  return library.find("H5get_libversion", api.get_libversion) &&
         library.find("H5Pget_nfilters", api.get_nfilters) &&
         library.find("H5Pget_filter2", api.get_filter) &&
         library.find("H5Pmodify_filter", api.modify_filter) &&
         library.find("H5Pget_chunk", api.get_chunk) &&
         library.find("H5Tget_class", api.get_class) && library.find("H5Tget_size", api.get_size) &&
         library.find("H5Tget_fields", api.get_fields) &&
         library.find("H5Tget_nmembers", api.get_nmembers) &&
         library.find("H5Tget_member_class", api.get_member_class) &&
         library.find("H5Epush2", api.push_error) &&
         library.find("H5E_ERR_CLS_g", api.error_class) &&
         library.find("H5E_PLINE_g", api.pipeline) && library.find("H5E_SETLOCAL_g", api.set_local);
}

bool has_wide_ids(const Api& api) {
  return version_of(api.get_libversion) >= 110;
}

// This filter's entry in the pipeline of a dataset that is being created.
struct Filter {
  bool is_first = false;  // its input is the dataset's chunks, not the output of another filter
  int times = 0;
  const OfNumbers* next = nullptr;  // a filter of numbers after it
  unsigned flags = 0;
  std::vector<unsigned> values;
};

Filter find_filter(const Api& api, Hdf5Id plist) {
  Filter found;
  const int n = api.get_nfilters(plist);
  for (int i = 0; i < n; ++i) {
    Filter each;
    unsigned config = 0;
    size_t n_values = kMaxValues;
    each.values.resize(kMaxValues);
    const int id = api.get_filter(plist, static_cast<unsigned>(i), &each.flags, &n_values,
                                  each.values.data(), 0, nullptr, &config);
    if (id == kOwnFilterId && ++found.times == 1) {
      // Any further values must be zeros: others are refused when chunks are encoded.
      each.values.resize(std::min(n_values, kMaxValues));
      found.values = std::move(each.values);
      found.flags = each.flags;
      found.is_first = i == 0;
    } else if (found.times > 0) {
      const auto* const next = std::ranges::find(kOfNumbers, id, &OfNumbers::id);
      if (next != std::end(kOfNumbers)) found.next = next;
    }
  }
  return found;
}

// The dtype of an HDF5 floating-point type, if the format has it.
std::optional<DType> own_dtype(const Api& api, Hdf5Id type) {
  if (api.get_class(type) != kFloat) return {};
  size_t sign = 0, exponent = 0, exponent_size = 0, mantissa = 0, mantissa_size = 0;
  if (api.get_fields(type, &sign, &exponent, &exponent_size, &mantissa, &mantissa_size) < 0) {
    return {};
  }
  struct Fields {
    size_t size, exponent, mantissa;
    DType dtype;
  };
  constexpr Fields kFields[] = {{2, 8, 7, DType::bfloat16},      {2, 5, 10, DType::float16},
                                {4, 8, 23, DType::float32},      {8, 11, 52, DType::float64},
                                {1, 4, 3, DType::float8_e4m3fn}, {1, 5, 2, DType::float8_e5m2}};
  const size_t size = api.get_size(type);
  for (const Fields& known : kFields) {
    if (known.size == size && known.exponent == exponent_size && known.mantissa == mantissa_size) {
      return known.dtype;
    }
  }
  return {};
}

// h5py writes complex numbers as pairs, in a compound type before HDF5 2.0.
bool is_complex(const Api& api, Hdf5Id type) {
  const int type_class = api.get_class(type);
  if (type_class == kComplex) return true;
  return type_class == kCompound && api.get_nmembers(type) == 2 &&
         api.get_member_class(type, 0) == kFloat;
}

// The dtype for other types, by item size, as the Python package chooses it.
DType dtype_for(const Api& api, Hdf5Id type) {
  if (const auto dtype = own_dtype(api, type)) return *dtype;
  const size_t size = api.get_size(type);
  if (is_complex(api, type)) return size == 8 ? DType::float32 : DType::float64;
  if (size == 1) return DType::float8_e4m3fn;
  if (size == 4) return DType::float32;
  return size == 8 || size == 16 ? DType::float64 : DType::bfloat16;
}

// The shape of the dataset's chunks, empty if it has none.
std::vector<uint64_t> chunk_shape(const Api& api, Hdf5Id plist) {
  unsigned long long shape[kMaxRank];
  const int rank = api.get_chunk(plist, kMaxRank, shape);
  return std::vector<uint64_t>(shape, shape + std::max(rank, 0));
}

void check(const Api& api, Hdf5Id plist, Hdf5Id type, const Filter& filter) {
  const bf16codecs_encode_options options =
      hdf5_settings(filter.values.size(), filter.values.data());
  const std::vector<uint64_t> shape = chunk_shape(api, plist);
  if (!filter.is_first || shape.empty()) return;
  size_t nbytes = api.get_size(type);
  for (const uint64_t size : shape) nbytes *= static_cast<size_t>(size);
  check_steps(nbytes, options, "a chunk");
}

// Refuses pipelines whose chunks could be written but not read.
void check_others(const Filter& filter) {
  if (filter.times > 1) throw std::runtime_error("the filter of bf16codecs is there twice");
  if (filter.next != nullptr) {
    throw std::runtime_error("the " + std::string(filter.next->name) +
                             " filter after that of bf16codecs takes what is compressed for the"
                             " dataset's numbers: leave it out");
  }
}

// Puts what only the dataset tells into the filter's values: its dtype for kHdf5AutoDType, and the
// row of its chunks. Values that state a chunk's size keep their row.
void complete(const Api& api, Hdf5Id plist, Hdf5Id type, Filter& filter) {
  std::vector<unsigned>& values = filter.values;
  const std::vector<unsigned> given = values;
  if (values.size() > kHdf5DTypeAt && values[kHdf5DTypeAt] == kHdf5AutoDType) {
    values[kHdf5DTypeAt] = static_cast<unsigned>(dtype_for(api, type));
  }
  const bool knows_row = values.size() > kHdf5RowAt && values[kHdf5RowAt] != 0;
  if (filter.is_first && !(knows_row && hdf5_chunk_size(values.size(), values.data()) != 0)) {
    const unsigned row = hdf5_row(chunk_shape(api, plist), api.get_size(type), values);
    if (row != 0) {
      values.resize(std::max(values.size(), kHdf5RowAt + 1));
      values[kHdf5RowAt] = row;
    }
  }
  if (values != given &&
      api.modify_filter(plist, kOwnFilterId, filter.flags, values.size(), values.data()) < 0) {
    throw std::runtime_error("the HDF5 library does not take the dataset's dtype and rows");
  }
}

void settle(const Api& api, Hdf5Id plist, Hdf5Id type, Filter& filter, Warn warn) {
  check_others(filter);
  complete(api, plist, type, filter);
  const std::vector<unsigned>& values = filter.values;
  // A mandatory filter fails at the first write, which programs such as h5repack report.
  if ((filter.flags & kHdf5Optional) != 0) check(api, plist, type, filter);
  const std::optional<DType> native = own_dtype(api, type);
  const std::optional<DType> chosen =
      find_number(kDTypeNames, values.size() > kHdf5DTypeAt ? values[kHdf5DTypeAt] : 0);
  if (filter.is_first && native && chosen && *native != *chosen) {
    const std::string name = name_of(kDTypeNames, *native);
    warn(("the HDF5 filter for " + std::string(name_of(kDTypeNames, *chosen)) + " encodes " + name +
          ", exactly but less well: give dtype='" + name +
          "', or dtype='auto' (cd_values[1]: " + std::to_string(static_cast<unsigned>(*native)) +
          ", or " + std::to_string(kHdf5AutoDType) + ")")
             .c_str());
  }
}

}  // namespace

int settle_dataset(Hdf5Id plist, Hdf5Id type, const void* caller, Warn warn) noexcept {
  constexpr const char* kFailure = "HDF5 dataset not created";
  Api api{};
  try {
    if (!find(Library(caller), api) || !has_wide_ids(api)) return 0;
    Filter filter = find_filter(api, plist);
    if (filter.times > 0) settle(api, plist, type, filter, warn);
    return 0;
  } catch (const std::bad_alloc&) {
    report(kFailure, "not enough memory");
  } catch (const std::exception& error) {
    report(kFailure, error.what());
    // h5py reads the reason from the error stack.
    api.push_error(0, "bf16codecs", "", 0, *api.error_class, *api.pipeline, *api.set_local, "%s",
                   error.what());
  }
  return -1;
}

}  // namespace bf16codecs
