#pragma once

// What a device is given to decode, as the host writes it: little-endian, without gaps.

#include <cstdint>

#include "kernels/delta_entries.h"

namespace bf16codecs::cuda {

// How far a block is decoded. Of what is not `done`, the block's part of the output is undefined.
enum class Verdict : uint8_t {
  pending = 0,  // there was no room for it, or no kernel yet that has its modes
  done = 1,
  corrupt = 2,
  elsewhere = 3,   // with modes that the host decodes: Zstandard, scale, tiles
  other_base = 4,  // the base is not the one that the frame was encoded with
};

inline constexpr uint8_t kJobByByte = 1;       // planes are by byte
inline constexpr uint8_t kJobChecked = 2;      // `checksum` is that of the block
inline constexpr uint8_t kJobBaseChecked = 4;  // `base_checksum` is that of the base's block

// Bits of a payload are counted in 32 bits. What a block of 4 MiB can take is far below.
inline constexpr uint32_t kMostPayload = 1u << 28;

// A block. Addresses are the device's; 0 where there is nothing.
struct Job {
  uint64_t payload;
  uint64_t items;    // where they go; they may lie where the base is
  uint64_t base;     // the base's items of the same place
  uint64_t section;  // a Section: how differences are coded
  uint64_t first;    // the block's first item, counted in its version
  uint32_t size;     // of the payload
  uint32_t n;        // items, at most 4 MiB of them
  uint32_t checksum, base_checksum;
  uint8_t width;  // of an item, in bytes
  uint8_t flags;
  uint8_t unused[6];
};
static_assert(sizeof(Job) == 64);

// How the blocks of 2^22 items are coded given a base (docs/format_differences.md, "The difference
// model"): grid, shape and tables of a section. `columns` is an address on the device.
struct Section {
  uint64_t columns;  // i16 for each column
  uint32_t run, period;
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

// What a plane of n symbols takes of the memory beside the items.
constexpr uint64_t plane_stride(uint64_t n) {
  return (n + 15) / 16 * 16;
}

}  // namespace bf16codecs::cuda
