#pragma once

// The jobs of a device, as the host writes them: little-endian, without padding.

#include <cstdint>

#include "format/constants.h"
#include "kernels/delta_entries.h"
#include "kernels/formulas.h"

namespace bf16codecs::cuda {

// The state of a block. Unless it is `done`, the block's output is undefined, and so is a base
// there; but for `to_merge` and `to_multiply`, where what is decoded is at its end.
enum class Verdict : uint8_t {
  pending = 0,  // no kernel with its modes has run yet, or it lacked memory
  done = 1,
  corrupt = 2,
  elsewhere = 3,    // it has modes that the host decodes: Zstandard, scale, tiles
  other_base = 4,   // the base is not that of the encoder
  to_merge = 5,     // plane 0 is decoded, and has to be merged with a stored plane 1
  to_multiply = 6,  // the symbols of a grid are there, and have to become items
};

// The kernels, in the order of their launches.
enum Kernel : uint8_t {
  kDecodeFused = 1,
  kDecodeFusedDelta = 2,
  kDecodeHuffman = 4,  // or, for few blocks, kDecodeAny
  kDecodeAny = 8,
  kMergePlanes = 16,
  kMultiplyLevels = 32,
};
inline constexpr uint8_t kAllKernels = 2 * kMultiplyLevels - 1;

inline constexpr uint8_t kJobByByte = 1;       // planes are by byte
inline constexpr uint8_t kJobChecked = 2;      // `checksum` is that of the block
inline constexpr uint8_t kJobBaseChecked = 4;  // `base_checksum` is that of the base's block

inline constexpr uint8_t kJobGrid = 8;  // `section` is a Grid

// Positions of bits in a payload must fit 32 bits. Blocks of 4 MiB take far less.
inline constexpr uint32_t kMostPayload = 1u << 28;

// A block. Addresses are the device's, or 0 for none.
struct Job {
  uint64_t payload;
  uint64_t items;    // the output; it may be the memory of the base
  uint64_t base;     // the corresponding items of the base
  uint64_t section;  // a Section, for differences; for a grid, a Grid
  uint64_t first;    // the block's first item, counted in its version
  uint32_t size;     // of the payload
  uint32_t n;        // items, at most 4 MiB of them
  uint32_t checksum, base_checksum;
  uint8_t width;  // of an item, in bytes
  uint8_t flags;
  uint8_t unused[6];
};
static_assert(sizeof(Job) == 64);

// The difference model of 2^22 items (docs/format_differences.md, "The difference model"): grid,
// shape and tables of a section. `columns` is an address on the device.
struct Section {
  uint64_t columns;  // i16 for each column
  uint32_t row_length, period;
  int32_t base, most;  // scales
  int32_t origin;
  uint8_t row_step, column_step;
  uint8_t relation, low;
  uint8_t shift, places, fraction, near;
  uint8_t near_raw;
  uint8_t unused[3];
  uint8_t raw[kDeltaClasses];
  uint8_t class_of[kDeltaPlaces];
  uint16_t start[kDeltaClasses * kDeltaEntries];
  uint16_t coder[kDeltaClasses * kDeltaEntries];  // q << 12 | f
};
static_assert(sizeof(Section) == 1144);

// The most levels of a grid's codes, which have up to four low bits.
inline constexpr unsigned kMostCodes = 32 << 4;

// The low bits of codes, or some of them (docs/format_grids.md, "Codes").
struct PackedBits {
  uint32_t begin, size;  // in the block, in bytes
  uint32_t bits;         // of a code, 0 if there are none
};

// A block in the grid mode, as the host has read it. Devices rely on it rather than on the payload,
// and do nothing that is undefined if that is another one.
struct Grid {
  uint64_t levels;               // address of an f32 for each code
  uint64_t scales, offsets;      // and for each group; 0 for products, which have no offsets
  uint64_t plain;                // address of the plain items, 0 if there are none
  uint32_t row, height, width;   // of a group's rows, and of a group
  uint32_t groups;               // in a band
  uint32_t column, row_of_band;  // of the block's first item; plus the block's items, below 2^32
  uint32_t coded;                // number of items that are not plain
  uint32_t begin, size;          // of the symbols' payload in the block, which is behind their mode
  PackedBits low[2];             // the upper bits first
  uint32_t codes;                // number of levels
  Mode mode;                     // of the symbols
  Container container;
  Precision precision;
  Formula formula;
  uint8_t unused[4];
};
static_assert(sizeof(Grid) == 104);

// The size of a plane of n symbols in scratch memory.
constexpr uint64_t plane_stride(uint64_t n) {
  return (n + 15) / 16 * 16;
}

}  // namespace bf16codecs::cuda
