#pragma once

// Sparse planes (docs/format.md, "Sparse plane"): of items that are exactly zero, a plane after
// plane 0 has at most a sign bit.

#include <cstddef>
#include <cstdint>

#include "kernels/kernels.h"
#include "workspace.h"

namespace bf16codecs::sparse {

// Room that a payload needs besides that for a stored plane while it is encoded.
inline constexpr size_t kEncodeSlack = 256;

// Encodes planes after plane 0 where many items are zero.
class Encoder {
 public:
  // Looks at a sample of the n symbols of plane 0: that takes 0.05 us, 0.1 % of a block's time.
  Encoder(const uint8_t* first, size_t n);

  // Whether there are enough zeros for a plane to be smaller by 1/32 of it.
  bool may_pay() const { return zeros_ > counted_ / 16; }

  // Writes the payload of a plane to `out`, which has room for n + kEncodeSlack bytes, and returns
  // its size; 0 if it would not be smaller by 1/32 of the plane than the plane is stored, or in a
  // code of its own.
  size_t encode(const uint8_t* plane, uint8_t* out, Scratch& scratch) const;

 private:
  const uint8_t* first_;
  size_t n_, counted_, zeros_ = 0;
};

// The most symbols that a Reader decodes at a time.
inline constexpr size_t kMostDecoded = 4096;

// Decodes a plane in pieces, while plane 0 is in the first-level cache.
class Reader {
 public:
  // Memory for the last symbols and sign bits, from which whole vectors may be read.
  static constexpr size_t kSymbolRoom = 2 * (kMostDecoded + kSparseMargin);
  static constexpr size_t kSignRoom = 2 * (kMostDecoded / 8 + 1 + kSparseMargin);
  static constexpr size_t kRoom = kSymbolRoom + kSignRoom;

  // `room` has kRoom bytes. Throws CorruptDataError for a payload that cannot hold n symbols.
  Reader(const uint8_t* payload, size_t size, size_t n, uint8_t* room);

  // Decodes the next n symbols, at most kMostDecoded, given those of plane 0. Throws
  // CorruptDataError.
  void decode(const uint8_t* first, size_t n, uint8_t* plane);

  // Throws CorruptDataError unless all of the payload was used.
  void finish() const;

 private:
  void provide(size_t n);
  void replace_exceptions(const uint8_t* first, size_t n, uint8_t* plane);

  SparseDecoder state_;
  const uint8_t* symbols_end_;
  size_t signs_end_;  // where state_.sign ends
  const uint8_t* exception_;
  const uint8_t* exceptions_end_;
  size_t at_ = 0, least_ = 0;  // the next item, and the least that the next exception may be
  uint8_t* const room_;
  bool has_last_symbols_ = false, has_last_signs_ = false;  // they are in room_
};

}  // namespace bf16codecs::sparse
