#include "bindings/names.h"

#include "format/constants.h"
#include "format/names.h"
#include "options.h"

namespace nb = nanobind;

namespace bf16codecs {
namespace {

template <typename Number, size_t n>
nb::dict numbers_by_name(const Named<Number> (&names)[n]) {
  nb::dict numbers;
  for (const auto& named : names) numbers[named.name] = static_cast<int>(named.number);
  return numbers;
}

}  // namespace

void publish_names(nb::module_& module) {
  module.attr("FORMAT_VERSION") = kFormatVersion;
  module.attr("DEFAULT_BLOCK_BYTES") = kDefaultBlockBytes;
  module.attr("MAX_BLOCK_BYTES") = kMaxBlockBytes;
  module.attr("MAX_STEPS") = kMaxSteps;
  module.attr("CODECS") = numbers_by_name(kCodecNames);
  module.attr("DTYPES") = numbers_by_name(kDTypeNames);
  module.attr("LEVELS") = numbers_by_name(kLevelNames);
  nb::list ids;
  for (const int id : kHdf5FilterIds) ids.append(id);
  module.attr("HDF5_FILTER_IDS") = nb::tuple(ids);
  module.attr("HDF5_AUTO_DTYPE") = kHdf5AutoDType;
  module.attr("HDF5_FLAGS") = numbers_by_name(kHdf5FlagNames);
  nb::dict item_sizes;
  for (const auto& named : kDTypeNames) item_sizes[named.name] = item_size(named.number);
  module.attr("ITEM_SIZES") = item_sizes;
  nb::list modes;
  for (const auto& named : kModeNames) modes.append(named.name);
  module.attr("MODES") = modes;
}

}  // namespace bf16codecs
