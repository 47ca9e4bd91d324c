#pragma once

// Decoding of planes, and of blocks that are nothing but planes.

#include <cstddef>
#include <cstdint>
#include <optional>

#include "block/block.h"
#include "format/checksum.h"
#include "huffman/huffman.h"
#include "sparse/sparse.h"

namespace bf16codecs {

// The output of a block, whose bytes are added to the checksum as they come.
class Output {
 public:
  Output(uint8_t* items, bool want_checksum) : next_(items), want_checksum_(want_checksum) {}

  uint8_t* next() const { return next_; }
  void advance(size_t bytes) {
    if (want_checksum_) checksum_.update(next_, bytes);
    next_ += bytes;
  }
  uint32_t checksum() const { return want_checksum_ ? checksum_.value() : 0; }

 private:
  uint8_t* next_;
  bool want_checksum_;
  Checksum checksum_;
};

// Items that are decoded or merged between two updates of the checksum, which finds them in the
// first-level cache.
inline constexpr size_t kStrip = 4096;
// The most items that the difference mode decodes at a time.
inline constexpr size_t kMaxStrip = kStrip + kMaxLanes;

// A plane as merging reads it: strip by strip, or the same strip every time, which is enough for a
// constant plane.
struct PlaneSource {
  const uint8_t* symbols;
  bool is_repeated;

  const uint8_t* from(size_t i) const { return symbols + (is_repeated ? 0 : i); }
};

// Decodes a plane that is coded alone to `scratch`, which has room for n + kPlaneSlack symbols. A
// stored plane stays where it is, and one in another mode is left to be decoded with others. Throws
// CorruptDataError.
PlaneSource decode_plane(const PlaneView& view, size_t n, const Zstd* zstd, uint8_t* scratch,
                         const UsedNext& next = {});

// The planes of a block that are sparse, which are decoded strip by strip.
class SparsePlanes {
 public:
  // Memory that each of them needs.
  static constexpr size_t kRoom = kStrip + sparse::Reader::kRoom;

  void add(size_t plane, const PlaneView& view, size_t n, uint8_t* room);
  // Decodes the next n symbols of each, at most kStrip, and points `planes` to them. Plane 0 has
  // its symbols already.
  void decode(size_t n, const uint8_t* planes[]);
  // Throws CorruptDataError unless all of each payload was used.
  void finish() const;

 private:
  static_assert(kStrip <= sparse::kMostDecoded);
  std::optional<sparse::Reader> readers_[kMaxItemSize];
  uint8_t* strips_[kMaxItemSize];
};

// The planes of a block, decoded to memory of the workspace before they are merged. Sparse ones are
// decoded strip by strip.
class PlanesReader {
 public:
  // The items will be `out`. Throws CorruptDataError.
  PlanesReader(const Layout& layout, const BlockContext& context, const PlaneView views[], size_t n,
               const Zstd* zstd, const uint8_t* out);

  // Points planes[0 ... w - 1] to the next symbols; returns how many, 0 at the end. Throws
  // CorruptDataError.
  size_t next(const uint8_t* planes[]);

 private:
  size_t width_, n_, at_ = 0;
  PlaneSource sources_[kMaxItemSize];
  SparsePlanes sparse_planes_;
};

// Decodes a block of planes, also one whose first planes the frame's model describes. The usual
// modes are decoded in one pass. Throws CorruptDataError.
void decode_planes(const Layout& layout, const BlockContext& context, const PlaneView views[],
                   size_t n, const Zstd* zstd, Output& out);

}  // namespace bf16codecs
