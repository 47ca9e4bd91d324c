// Before version 2.2, libhdf5 relies on filters to return as many bytes as a chunk has, and reads
// past their end otherwise. It does not pass that size to the filter, and the size in cd_values
// comes from the same untrusted file. But libhdf5 lists open datasets, and the chunk belongs to one
// of them.

#include "hdf5/expected.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
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
// H5T_class_t.
constexpr int kString = 3, kCompound = 6, kReference = 7, kVariable = 9, kArray = 10;
constexpr int kMaxRank = 33;  // H5S_MAX_RANK, and the size of an item
constexpr unsigned kMaxValues = 16;

struct Api {
  int (*get_libversion)(unsigned*, unsigned*, unsigned*);
  ptrdiff_t (*get_obj_ids)(hid_t, unsigned, size_t, hid_t*);
  int (*is_valid)(hid_t);
  hid_t (*open_dataset)(hid_t, const char*, hid_t);
  int (*close_dataset)(hid_t);
  hid_t (*get_create_plist)(hid_t);
  hid_t (*get_type)(hid_t);
  size_t (*get_size)(hid_t);
  int (*get_class)(hid_t);
  int (*get_nmembers)(hid_t);
  hid_t (*get_member_type)(hid_t, unsigned);
  hid_t (*get_super)(hid_t);
  int (*is_variable_str)(hid_t);
  int (*get_layout)(hid_t);
  int (*get_chunk)(hid_t, int, hsize_t*);
  int (*get_nfilters)(hid_t);
  int (*get_filter)(hid_t, unsigned, unsigned*, size_t*, unsigned*, size_t, char*, unsigned*);
  int (*close_type)(hid_t);
  int (*close_plist)(hid_t);
};

bool find(const Library& library, Api& api) {
  return library.find("H5get_libversion", api.get_libversion) &&
         library.find("H5Fget_obj_ids", api.get_obj_ids) &&
         library.find("H5Iis_valid", api.is_valid) && library.find("H5Dopen2", api.open_dataset) &&
         library.find("H5Dclose", api.close_dataset) &&
         library.find("H5Dget_create_plist", api.get_create_plist) &&
         library.find("H5Dget_type", api.get_type) && library.find("H5Tget_size", api.get_size) &&
         library.find("H5Tget_class", api.get_class) &&
         library.find("H5Tget_nmembers", api.get_nmembers) &&
         library.find("H5Tget_member_type", api.get_member_type) &&
         library.find("H5Tget_super", api.get_super) &&
         library.find("H5Tis_variable_str", api.is_variable_str) &&
         library.find("H5Pget_layout", api.get_layout) &&
         library.find("H5Pget_chunk", api.get_chunk) &&
         library.find("H5Pget_nfilters", api.get_nfilters) &&
         library.find("H5Pget_filter2", api.get_filter) &&
         library.find("H5Tclose", api.close_type) && library.find("H5Pclose", api.close_plist);
}

// From 2.2 on, libhdf5 checks the size itself, and may call filters from its own threads.
bool has_to_be_asked(const Api& api) {
  const unsigned version = version_of(api.get_libversion);
  return version >= 110 && version < 202;
}

// The chunks that a dataset expects from the filter.
struct Expected {
  bool is_virtual = false;  // its sources are open, but libhdf5 does not list them
  bool is_ours = false;
  size_t size = 0;  // largest size of its chunks; 0 if another filter changes it before this one
  bool is_exact = true;
  std::vector<unsigned> values;
};

// The size of an item in a file. It differs from that in memory for references to data elsewhere in
// the file: a string takes 16 bytes there, but 8 as a pointer.
struct ItemSize {
  size_t bytes = 0;  // largest
  bool is_exact = true;
};

// A length of 4 bytes, an address, and an index of 4 bytes. Addresses have 8 bytes unless the file
// was created with fewer.
constexpr size_t kReferred = 16;

ItemSize item_size(const Api& api, hid_t type) {
  const size_t size = api.get_size(type);
  const int type_class = api.get_class(type);
  if (type_class == kVariable || (type_class == kString && api.is_variable_str(type) > 0)) {
    return {kReferred, false};
  }
  // References of 64 bytes in memory take 18 in a file; older kinds take the same in both.
  if (type_class == kReference) return {size, false};
  ItemSize item{size, true};
  if (type_class == kCompound) {
    const int n = api.get_nmembers(type);
    for (int i = 0; i < n; ++i) {
      const hid_t member = api.get_member_type(type, static_cast<unsigned>(i));
      const ItemSize stored = item_size(api, member);
      item.bytes += std::max(stored.bytes, api.get_size(member)) - api.get_size(member);
      item.is_exact &= stored.is_exact;
      api.close_type(member);
    }
  } else if (type_class == kArray) {
    const hid_t element = api.get_super(type);
    const ItemSize stored = item_size(api, element);
    const size_t in_memory = api.get_size(element);
    if (in_memory != 0) item.bytes = std::max(stored.bytes, in_memory) * (size / in_memory);
    item.is_exact = stored.is_exact;
    api.close_type(element);
  }
  return item;
}

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
    const ItemSize item = item_size(api, type);
    expected.size = item.bytes;
    expected.is_exact = item.is_exact;
    for (int i = 0; i < rank; ++i) expected.size *= static_cast<size_t>(shape[i]);
    api.close_type(type);
    ask_filters(api, plist, expected);
  }
  api.close_plist(plist);
  return expected;
}

// The chunk sizes that open datasets with the same filter parameters expect.
struct Group {
  size_t largest = 0;
  bool is_settled = true;  // no other sizes are possible
  std::set<size_t> sizes;

  void add(const Expected& dataset) {
    largest = std::max(largest, dataset.size);
    is_settled &= dataset.size != 0 && dataset.is_exact;
    sizes.insert(dataset.size);
  }
};

// The open datasets of the libhdf5 that called last. libhdf5 numbers datasets in the order of
// opening, and does not reuse numbers until it is closed or unloaded. Each chunk needs the list,
// and listing takes 40 ns for each dataset. So if there are many, one is opened again: if it gets
// the next number, no dataset is new. Datasets closed meanwhile may still count as open, which only
// allows more sizes.
class OpenDatasets {
 public:
  // See `room_for_chunk`. Returns `size` if libhdf5 need not, or cannot, be asked.
  size_t room(size_t size, const std::vector<unsigned>& values, const void* caller) {
    if (caller == nullptr) return size;
    const std::lock_guard lock(mutex_);
    if (caller != caller_) enter(caller);
    if (!can_ask_) return size;
    if (may_have_new() && list()) sort();
    const auto found = groups_.find(values);
    if (found == groups_.end()) return size;
    const Group& group = found->second;
    const bool is_settled = group.is_settled && !has_virtual_;
    if (group.largest != 0 && is_settled && !group.sizes.contains(size)) {
      throw CorruptDataError("it has " + counted(size, "byte") + ", and the dataset's chunks " +
                             std::to_string(group.largest));
    }
    return std::max(size, group.largest);
  }

  void forget() {
    const std::lock_guard lock(mutex_);
    enter(nullptr);
  }

 private:
  static constexpr size_t kFew = 64, kMany = 200;

  void enter(const void* caller) {
    caller_ = caller;
    clear();
    can_ask_ = caller != nullptr && find(Library(caller), api_) && has_to_be_asked(api_);
  }

  bool may_have_new() {
    if (ids_.size() < kMany || api_.is_valid(ids_.back()) <= 0) return true;
    const hid_t again = api_.open_dataset(ids_.back(), ".", 0);
    if (again < 0) return true;
    api_.close_dataset(again);
    return std::exchange(newest_, again) + 1 != again;
  }

  // Lists the open datasets; returns whether the list has changed.
  bool list() {
    ptrdiff_t count = 0;
    do {
      listed_.resize(std::max(2 * listed_.size(), ids_.size() + kFew));
      count = api_.get_obj_ids(kAllFiles, kDatasets, listed_.size(), listed_.data());
    } while (count == static_cast<ptrdiff_t>(listed_.size()));
    listed_.resize(count > 0 ? static_cast<size_t>(count) : 0);
    return listed_ != ids_;
  }

  // Examines the datasets that are new in the list, at 10 us each. If memory runs out, it clears
  // everything, and examines all datasets the next time.
  void sort() try {
    for (const hid_t id : listed_) {
      if (known_.contains(id)) continue;
      const Expected dataset = ask(api_, id);
      add(dataset);
      known_.emplace(id, dataset);
    }
    if (known_.size() != listed_.size()) forget_closed();
    std::swap(listed_, ids_);
  } catch (...) {
    clear();
    throw;
  }

  void clear() {
    ids_.clear();
    known_.clear();
    groups_.clear();
    has_virtual_ = false;
  }

  void forget_closed() {
    const std::unordered_set<hid_t> open(listed_.begin(), listed_.end());
    std::erase_if(known_, [&](const auto& entry) { return !open.contains(entry.first); });
    groups_.clear();
    has_virtual_ = false;
    for (const auto& [id, dataset] : known_) add(dataset);
  }

  void add(const Expected& dataset) {
    has_virtual_ |= dataset.is_virtual;
    if (dataset.is_ours) groups_[dataset.values].add(dataset);
  }

  std::mutex mutex_;
  const void* caller_ = nullptr;
  bool can_ask_ = false, has_virtual_ = false;
  Api api_{};
  hid_t newest_ = 0;
  std::vector<hid_t> ids_, listed_;
  std::unordered_map<hid_t, Expected> known_;
  std::map<std::vector<unsigned>, Group> groups_;
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
  return open_datasets().room(size, {values.begin(), values.end()}, caller);
}

}  // namespace bf16codecs
