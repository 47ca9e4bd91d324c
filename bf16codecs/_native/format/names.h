#pragma once

// Names and numbers of codecs, dtypes, modes, levels and HDF5 flags. This is their only source: the
// bindings publish it to Python, and error messages use it.

#include <cstdint>
#include <iterator>
#include <optional>
#include <string>

#include "format/constants.h"

namespace bf16codecs {

template <typename Number>
struct Named {
  const char* name;
  Number number;
};

inline constexpr Named<Codec> kCodecNames[] = {{"split", Codec::split},
                                               {"huffman", Codec::huffman},
                                               {"arithmetic", Codec::arithmetic},
                                               {"zstd", Codec::zstd}};

inline constexpr Named<DType> kDTypeNames[] = {{"bfloat16", DType::bfloat16},
                                               {"float16", DType::float16},
                                               {"float32", DType::float32},
                                               {"float64", DType::float64},
                                               {"float8_e4m3fn", DType::float8_e4m3fn},
                                               {"float8_e5m2", DType::float8_e5m2}};
static_assert(std::size(kDTypeNames) == kDTypes);

inline constexpr Named<Mode> kModeNames[] = {{"stored", Mode::stored},
                                             {"constant", Mode::constant},
                                             {"huffman", Mode::huffman},
                                             {"rans_pairs", Mode::rans_pairs},
                                             {"rans_wide", Mode::rans_wide},
                                             {"zstd", Mode::zstd},
                                             {"scale", Mode::scale},
                                             {"joined", Mode::joined},
                                             {"tiles", Mode::tiles},
                                             {"same", Mode::same},
                                             {"difference", Mode::difference},
                                             {"sparse", Mode::sparse},
                                             {"grid", Mode::grid}};
static_assert(std::size(kModeNames) == kModes);

// Levels of Codec::arithmetic.
inline constexpr int kFast = 0, kBest = 1;
inline constexpr Named<int> kLevelNames[] = {{"fast", kFast}, {"best", kBest}};
// Levels of Codec::zstd: 1 to this.
inline constexpr int kMaxZstdLevel = 22;

// The HDF5 filter's ids: new files get the first, and all of them stay readable. 48918 (0xBF16) is
// from the HDF Group's range for private use (docs/hdf5_filter.md, "Filter id"). Then the flags in
// its cd_values.
inline constexpr int kHdf5FilterIds[] = {48918};
// In place of a dtype in cd_values: replaced by the dataset's dtype when the dataset is created.
inline constexpr unsigned kHdf5AutoDType = 255;
inline constexpr unsigned kHdf5ByByte = 1, kHdf5NoChecksums = 2, kHdf5NoGrids = 4;
inline constexpr Named<unsigned> kHdf5FlagNames[] = {
    {"by_byte", kHdf5ByByte}, {"no_checksums", kHdf5NoChecksums}, {"no_grids", kHdf5NoGrids}};

// Returns an empty string for an unknown number.
template <typename Number, size_t n>
constexpr const char* name_of(const Named<Number> (&names)[n], Number number) {
  for (const auto& named : names) {
    if (named.number == number) return named.name;
  }
  return "";
}

template <typename Number, size_t n>
constexpr std::optional<Number> find_number(const Named<Number> (&names)[n], int64_t number) {
  for (const auto& named : names) {
    if (static_cast<int64_t>(named.number) == number) return named.number;
  }
  return std::nullopt;
}

// "3 (arithmetic)"
template <typename Number>
std::string described(const Named<Number>& named) {
  return std::to_string(static_cast<int64_t>(named.number)) + " (" + named.name + ")";
}
inline std::string described(Codec codec) {
  return described(Named<Codec>{name_of(kCodecNames, codec), codec});
}

// "0 (fast) or 1 (best)"
template <typename Names>
std::string listed(const Names& names, const char* last_joint = " or ") {
  std::string list;
  const size_t n = std::size(names);
  for (size_t i = 0; i < n; ++i) {
    list += i == 0 ? "" : i + 1 < n ? ", " : last_joint;
    list += described(names[i]);
  }
  return list;
}

}  // namespace bf16codecs
