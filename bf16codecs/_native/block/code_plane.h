#pragma once

// Coding of one plane.

#include <cstddef>
#include <cstdint>

#include "format/constants.h"
#include "options.h"
#include "workspace.h"

namespace bf16codecs {

// A coded plane has a size field of 4 bytes, and must be smaller than the plane by more than that.
inline constexpr size_t kCodedOverhead = 5;

// No table is smaller than a plane of fewer symbols.
inline constexpr size_t kLeastCoded = 64;

// The mode of a plane, and the size of its payload, which a stored plane does not need.
struct CodedPlane {
  Mode mode = Mode::stored;
  size_t size = 0;
};

// A plane that a coder has coded; stored if that gave up, with size 0.
inline CodedPlane coded_or_stored(Mode mode, size_t size) {
  return size == 0 ? CodedPlane{} : CodedPlane{mode, size};
}

bool is_constant(const uint8_t* plane, size_t n);

// The counts of a plane, or of a sample of it.
struct PlaneCounts {
  uint32_t of[256];
  size_t counted;
  bool is_sample;

  PlaneCounts(const uint8_t* plane, size_t n);
  void make_exact(const uint8_t* plane, size_t n);
};

// Writes the plane's payload in the mode that the codec chooses, if that is smaller than the plane.
CodedPlane code_plane(const EncodeOptions& options, const uint8_t* plane, size_t n, uint8_t* out,
                      Workspace& workspace);

// Does so by Huffman or, below level `best`, by rANS, given counts, which it may make exact.
CodedPlane code_counted(const EncodeOptions& options, PlaneCounts& counts, const uint8_t* plane,
                        size_t n, uint8_t* out, Workspace& workspace);

// Codes the plane in the smaller one of the two rANS modes, however little it saves. The counts are
// exact, and at least two of them are not zero.
CodedPlane code_smallest(const PlaneCounts& counts, const uint8_t* plane, size_t n,
                         unsigned log2_groups, uint8_t* out, Scratch& words);

}  // namespace bf16codecs
