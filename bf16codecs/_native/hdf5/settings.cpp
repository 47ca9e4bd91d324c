#include "hdf5/settings.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>

#include "format/errors.h"
#include "format/layout.h"
#include "format/names.h"
#include "options.h"

namespace bf16codecs {
namespace {

// All codecs but the last, Zstandard, for which HDF5 has a filter.
constexpr std::span kCodecs(kCodecNames, std::size(kCodecNames) - 1);
static_assert(kCodecNames[std::size(kCodecs)].number == Codec::zstd);

[[noreturn]] void refuse(size_t at, unsigned value, const std::string& reason) {
  throw std::invalid_argument("cd_values[" + std::to_string(at) + "] is " + std::to_string(value) +
                              ": " + reason);
}

Codec codec_from(unsigned value) {
  if (value == 0) return Codec::huffman;
  const std::optional<Codec> codec = find_number(kCodecNames, value);
  if (!codec) refuse(kHdf5CodecAt, value, "the codec is " + listed(kCodecs));
  if (*codec == Codec::zstd) {
    refuse(kHdf5CodecAt, value, "Zstandard is HDF5's filter 32015, after shuffle");
  }
  return *codec;
}

DType dtype_from(unsigned value) {
  const std::optional<DType> dtype = find_number(kDTypeNames, value);
  if (!dtype) {
    refuse(kHdf5DTypeAt, value,
           (value == kHdf5AutoDType
                ? "the dataset's type is not numeric, or this HDF5 library does not report it: "
                : "") +
               ("the dtype is " + listed(kDTypeNames)));
  }
  return *dtype;
}

void read_flags(unsigned flags, Codec codec, bf16codecs_encode_options& options) {
  if ((flags & ~(kHdf5ByByte | kHdf5NoChecksums | kHdf5NoGrids)) != 0) {
    refuse(kHdf5FlagsAt, flags, "the flags are " + listed(kHdf5FlagNames, " and "));
  }
  options.by_byte = (flags & kHdf5ByByte) != 0;
  options.no_checksums = (flags & kHdf5NoChecksums) != 0;
  options.no_grids = (flags & kHdf5NoGrids) != 0;
  if (options.by_byte && codec != Codec::split) {
    refuse(kHdf5FlagsAt, flags, "only codec " + described(Codec::split) + " splits by bytes");
  }
  if (options.no_grids && codec == Codec::split) {
    refuse(kHdf5FlagsAt, flags, "codec " + described(Codec::split) + " has no grids anyway");
  }
}

int level_from(unsigned value, Codec codec) {
  if (codec != Codec::arithmetic) {
    if (value != 0) {
      refuse(kHdf5LevelAt, value, "only codec " + described(Codec::arithmetic) + " has levels");
    }
    return 0;
  }
  const std::optional<int> level = find_number(kLevelNames, value);
  if (!level) refuse(kHdf5LevelAt, value, "the level is " + listed(kLevelNames));
  return *level;
}

unsigned steps_from(unsigned value, Codec codec) {
  if (value <= 1) return 1;
  if (codec != Codec::huffman && codec != Codec::arithmetic) {
    refuse(kHdf5StepsAt, value,
           "only codecs " + described(Codec::huffman) + " and " + described(Codec::arithmetic) +
               " have steps");
  }
  if (value > kMaxSteps)
    refuse(kHdf5StepsAt, value, "at most " + std::to_string(kMaxSteps) + " steps");
  return value;
}

// Whether the codec makes use of rows: for its models, or to find grids.
bool has_rows(unsigned codec, unsigned level, unsigned flags) {
  const bool is_arithmetic = codec == static_cast<unsigned>(Codec::arithmetic);
  const bool is_huffman = codec == 0 || codec == static_cast<unsigned>(Codec::huffman);
  return (is_arithmetic && level == static_cast<unsigned>(kBest)) ||
         ((is_arithmetic || is_huffman) && (flags & kHdf5NoGrids) == 0);
}

}  // namespace

void check_steps(size_t nbytes, const bf16codecs_encode_options& options, const char* which) {
  if (options.steps == 1) return;
  if (nbytes % (options.steps * item_size(static_cast<DType>(options.dtype))) != 0) {
    throw std::invalid_argument(which + (" has " + counted(nbytes, "byte")) + ", which are not " +
                                std::to_string(options.steps) +
                                " steps of whole items, as cd_values[6] says: let the first"
                                " dimension of the chunks be a multiple of the steps");
  }
}

size_t hdf5_chunk_size(size_t n_values, const unsigned values[]) {
  return n_values > kHdf5ChunkSizeAt ? values[kHdf5ChunkSizeAt] : 0;
}

unsigned hdf5_row(std::span<const uint64_t> chunk_shape, size_t item_size,
                  std::span<const unsigned> values) {
  const auto at = [&](size_t i) { return i < values.size() ? values[i] : 0; };
  const auto dtype = find_number(kDTypeNames, at(kHdf5DTypeAt));
  if (chunk_shape.size() < 2 || !dtype || Layout{*dtype}.planes() != item_size ||
      !has_rows(at(kHdf5CodecAt), at(kHdf5LevelAt), at(kHdf5FlagsAt))) {
    return 0;
  }
  // A row that is short, as in a convolution's kernels, is joined with the axes before it, but for
  // the first.
  constexpr uint64_t kShortRow = 64;
  uint64_t items = 1;
  for (const uint64_t size : chunk_shape) {
    if (size != 0 && items > UINT64_MAX / size) return 0;
    items *= size;
  }
  const uint64_t steps = std::max(at(kHdf5StepsAt), 1u);
  uint64_t row = chunk_shape.back();
  if (row > UINT32_MAX) return 0;
  for (size_t axis = chunk_shape.size() - 2; axis > 0 && row < kShortRow; --axis) {
    if (row * chunk_shape[axis] * steps >= items) break;
    row *= chunk_shape[axis];
  }
  return row <= UINT32_MAX && (steps == 1 || row * steps < items) ? static_cast<unsigned>(row) : 0;
}

bf16codecs_encode_options hdf5_settings(size_t n_values, const unsigned values[]) {
  const auto at = [&](size_t i) { return i < n_values ? values[i] : 0; };
  bf16codecs_encode_options options = BF16CODECS_ENCODE_OPTIONS_INIT;
  const Codec codec = codec_from(at(kHdf5CodecAt));
  options.codec = static_cast<int>(codec);
  options.dtype = static_cast<int>(dtype_from(at(kHdf5DTypeAt)));
  read_flags(at(kHdf5FlagsAt), codec, options);
  options.level = level_from(at(kHdf5LevelAt), codec);
  options.row = at(kHdf5RowAt);
  options.steps = steps_from(at(kHdf5StepsAt), codec);
  for (size_t i = kHdf5KnownValues; i < n_values; ++i) {
    if (values[i] != 0) refuse(i, values[i], "unknown; a newer release may know it");
  }
  return options;
}

}  // namespace bf16codecs
