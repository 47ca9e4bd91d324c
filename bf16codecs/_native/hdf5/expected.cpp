// Before version 2.2, libhdf5 relies on a filter to return as many bytes as a chunk has, and reads
// past their end otherwise. It does not say how many that are, and what cd_values say is from the
// same file. But it can be asked for the datasets that are open: the chunk is of one of them.

#include "hdf5/expected.h"

#include <algorithm>
#include <cstdint>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "format/errors.h"
#include "format/names.h"
#include "hdf5/library.h"
#include "hdf5/own_id.h"

namespace bf16codecs {
namespace {

// From HDF5's headers. Before 1.10, identifiers have 32 bits.
using hid_t = int64_t;
using hsize_t = unsigned long long;
constexpr hid_t kAllFiles = 0x1F;          // H5F_OBJ_ALL
constexpr unsigned kDatasets = 0x2;        // H5F_OBJ_DATASET
constexpr int kChunked = 2, kVirtual = 3;  // H5D_layout_t
constexpr int kShuffle = 2;                // H5Z_FILTER_SHUFFLE
constexpr int kMaxRank = 33;               // H5S_MAX_RANK, and the size of an item
constexpr unsigned kMaxValues = 16;

struct Api {
  int (*get_libversion)(unsigned*, unsigned*, unsigned*);
  ptrdiff_t (*get_obj_count)(hid_t, unsigned);
  ptrdiff_t (*get_obj_ids)(hid_t, unsigned, size_t, hid_t*);
  hid_t (*get_create_plist)(hid_t);
  hid_t (*get_type)(hid_t);
  size_t (*get_size)(hid_t);
  int (*get_layout)(hid_t);
  int (*get_chunk)(hid_t, int, hsize_t*);
  int (*get_nfilters)(hid_t);
  int (*get_filter)(hid_t, unsigned, unsigned*, size_t*, unsigned*, size_t, char*, unsigned*);
  int (*close_type)(hid_t);
  int (*close_plist)(hid_t);
};

bool find(const Library& library, Api& api) {
  return library.find("H5get_libversion", api.get_libversion) &&
         library.find("H5Fget_obj_count", api.get_obj_count) &&
         library.find("H5Fget_obj_ids", api.get_obj_ids) &&
         library.find("H5Dget_create_plist", api.get_create_plist) &&
         library.find("H5Dget_type", api.get_type) && library.find("H5Tget_size", api.get_size) &&
         library.find("H5Pget_layout", api.get_layout) &&
         library.find("H5Pget_chunk", api.get_chunk) &&
         library.find("H5Pget_nfilters", api.get_nfilters) &&
         library.find("H5Pget_filter2", api.get_filter) &&
         library.find("H5Tclose", api.close_type) && library.find("H5Pclose", api.close_plist);
}

// From 2.2 on, libhdf5 compares the sizes itself, and may call filters from threads of its own.
bool has_to_be_asked(const Api& api) {
  const unsigned version = version_of(api.get_libversion);
  return version >= 110 && version < 202;
}

// What a dataset may expect of the filter.
struct Expected {
  bool is_virtual = false;  // made of others, which libhdf5 opens without a trace
  bool is_ours = false;
  size_t size = 0;  // of its chunks; 0 if the filter has what another filter made of them
  std::vector<unsigned> values;
};

void ask_filters(const Api& api, hid_t plist, Expected& expected) {
  bool is_first = true;
  const int n = api.get_nfilters(plist);
  for (int i = 0; i < n && !expected.is_ours; ++i) {
    unsigned flags = 0, config = 0, values[kMaxValues];
    size_t n_values = kMaxValues;
    const int id = api.get_filter(plist, static_cast<unsigned>(i), &flags, &n_values, values, 0,
                                  nullptr, &config);
    expected.is_ours = id == kOwnFilterId;
    if (expected.is_ours) {
      expected.values.assign(values, values + std::min<size_t>(n_values, kMaxValues));
    } else if (id != kShuffle) {
      is_first = false;
    }
  }
  if (!is_first) expected.size = 0;
}

Expected ask(const Api& api, hid_t dataset) {
  Expected expected;
  const hid_t plist = api.get_create_plist(dataset);
  if (plist < 0) return expected;
  const int layout = api.get_layout(plist);
  expected.is_virtual = layout == kVirtual;
  if (layout == kChunked) {
    hsize_t shape[kMaxRank];
    const int rank = api.get_chunk(plist, kMaxRank, shape);
    const hid_t type = api.get_type(dataset);
    expected.size = api.get_size(type);
    for (int i = 0; i < rank; ++i) expected.size *= static_cast<size_t>(shape[i]);
    api.close_type(type);
    ask_filters(api, plist, expected);
  }
  api.close_plist(plist);
  return expected;
}

// The open datasets of the libhdf5 that called last. What was found out is kept: finding its
// functions takes 15 us, and a dataset 10 us, of which hundreds may be open. libhdf5 gives the
// number of a closed dataset to no other one until it is closed itself, or unloaded.
class OpenDatasets {
 public:
  // Calls function(expected) for each; for none if libhdf5 need not, or cannot, be asked.
  template <typename Function>
  void for_each(const void* caller, Function function) {
    if (caller == nullptr) return;
    const std::lock_guard lock(mutex_);
    if (caller != caller_) enter(caller);
    if (!can_ask_) return;
    const ptrdiff_t count = api_.get_obj_count(kAllFiles, kDatasets);
    ids_.resize(count > 0 ? static_cast<size_t>(count) : 0);
    if (ids_.empty() || api_.get_obj_ids(kAllFiles, kDatasets, ids_.size(), ids_.data()) < 0)
      return;
    if (known_.size() > 2 * ids_.size() + kFew) known_.clear();
    for (const hid_t id : ids_) {
      const auto [answer, is_new] = known_.try_emplace(id);
      if (is_new) answer->second = ask(api_, id);
      function(answer->second);
    }
  }

  void forget() {
    const std::lock_guard lock(mutex_);
    caller_ = nullptr;
    can_ask_ = false;
    known_.clear();
  }

 private:
  static constexpr size_t kFew = 64;

  void enter(const void* caller) {
    caller_ = caller;
    known_.clear();
    can_ask_ = find(Library(caller), api_) && has_to_be_asked(api_);
  }

  std::mutex mutex_;
  const void* caller_ = nullptr;
  bool can_ask_ = false;
  Api api_{};
  std::vector<hid_t> ids_;
  std::unordered_map<hid_t, Expected> known_;
};

OpenDatasets& open_datasets() {
  static OpenDatasets datasets;
  return datasets;
}

}  // namespace

void forget_datasets() {
  open_datasets().forget();
}

size_t room_for_chunk(size_t size, std::span<const unsigned> values, const void* caller) {
  values = values.first(std::min<size_t>(values.size(), kMaxValues));
  size_t largest = 0;
  bool is_expected = false, is_settled = true;
  open_datasets().for_each(caller, [&](const Expected& dataset) {
    const bool is_possible = dataset.is_ours && std::ranges::equal(dataset.values, values);
    if (dataset.is_virtual || (is_possible && dataset.size == 0)) is_settled = false;
    if (!is_possible) return;
    largest = std::max(largest, dataset.size);
    is_expected |= size == dataset.size;
  });
  if (largest != 0 && !is_expected && is_settled) {
    throw CorruptDataError("it has " + counted(size, "byte") + ", and the dataset's chunks " +
                           std::to_string(largest));
  }
  return std::max(size, largest);
}

}  // namespace bf16codecs
