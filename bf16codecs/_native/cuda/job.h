#pragma once

// The jobs of a device, as the host writes them: little-endian, without padding.

#include <cstdint>

#include "kernels/delta_entries.h"

namespace bf16codecs::cuda {

// The state of a block. Unless it is `done`, the block's output is undefined, and so is a base
// there; but for `to_merge`, whose output is half of it.
enum class Verdict : uint8_t {
  pending = 0,  // no kernel with its modes has run yet, or it lacked memory
  done = 1,
  corrupt = 2,
  elsewhere = 3,   // it has modes that the host decodes: Zstandard, scale, tiles
  other_base = 4,  // the base is not that of the encoder
  to_merge = 5,    // plane 0 is decoded, and has to be merged with a stored plane 1
};

// The kernels, in the order of their launches.
enum Kernel : uint8_t {
  kDecodeFused = 1,
  kDecodeFusedDelta = 2,
  kDecodeHuffman = 4,  // or, for few blocks, kDecodeAny
  kDecodeAny = 8,
  kMergePlanes = 16,
};
inline constexpr uint8_t kAllKernels = 2 * kMergePlanes - 1;

inline constexpr uint8_t kJobByByte = 1;       // planes are by byte
inline constexpr uint8_t kJobChecked = 2;      // `checksum` is that of the block
inline constexpr uint8_t kJobBaseChecked = 4;  // `base_checksum` is that of the base's block

// Positions of bits in a payload must fit 32 bits. Blocks of 4 MiB take far less.
inline constexpr uint32_t kMostPayload = 1u << 28;

// A block. Addresses are the device's, or 0 for none.
struct Job {
  uint64_t payload;
  uint64_t items;    // the output; it may be the memory of the base
  uint64_t base;     // the corresponding items of the base
  uint64_t section;  // a Section, for differences
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

// The size of a plane of n symbols in scratch memory.
constexpr uint64_t plane_stride(uint64_t n) {
  return (n + 15) / 16 * 16;
}

}  // namespace bf16codecs::cuda
