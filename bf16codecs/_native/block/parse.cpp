// The parts of a block, and which modes its planes may have together.

#include "block/block.h"
#include "format/errors.h"
#include "format/little_endian.h"

namespace bf16codecs {
namespace {

// The caller's message names the block.
[[noreturn]] void corrupt(const char* what) {
  throw CorruptDataError(what);
}

bool is_modelled(Mode mode) {
  return mode == Mode::scale || mode == Mode::tiles;
}

// Checks which planes are joined. Only plane 0 may have a mode of several planes. How many planes
// are joined to a difference is up to the model, and checked with it.
void check_joined(size_t width, const PlaneView planes[]) {
  const Mode first = planes[0].mode;
  const bool is_whole = first == Mode::same || first == Mode::grid;
  const size_t joined = is_whole ? width : is_modelled(first) ? 2 : 1;
  for (size_t i = 1; i < width; ++i) {
    const Mode mode = planes[i].mode;
    if (mode == Mode::same || mode == Mode::difference || mode == Mode::grid || is_modelled(mode)) {
      corrupt("a mode of several planes after the first one");
    }
    if (first != Mode::difference && (mode == Mode::joined) != (i < joined)) {
      corrupt("a joined mode out of place");
    }
  }
  if (first == Mode::joined) corrupt("a joined mode out of place");
}

// Checks that sparse planes come after a plane 0 whose symbols are decoded.
void check_sparse(size_t width, const PlaneView planes[]) {
  const Mode first = planes[0].mode;
  const bool is_allowed = first != Mode::scale && first != Mode::same && first != Mode::difference;
  for (size_t i = 0; i < width; ++i) {
    if (planes[i].mode == Mode::sparse && (i == 0 || !is_allowed)) {
      corrupt("a sparse mode out of place");
    }
  }
}

}  // namespace

void parse_block(size_t width, size_t n, const uint8_t* block, size_t size, PlaneView planes[]) {
  const uint8_t* p = block;
  const uint8_t* const end = block + size;
  if (size < width) corrupt("it is shorter than its modes");
  for (size_t i = 0; i < width; ++i) {
    if (*p >= kModes) corrupt("an unknown mode");
    planes[i].mode = Mode{*p++};
  }
  check_joined(width, planes);
  check_sparse(width, planes);
  for (size_t i = 0; i < width; ++i) {
    const Mode mode = planes[i].mode;
    planes[i].size = mode == Mode::stored ? n : mode == Mode::constant ? 1 : 0;
    if (!is_coded(planes[i].mode)) continue;
    if (end - p < 4) corrupt("it is shorter than its sizes");
    planes[i].size = load_le<uint32_t>(p);
    p += 4;
  }
  for (size_t i = width; i-- != 0;) {
    if (planes[i].size > static_cast<size_t>(end - p)) corrupt("a plane past its end");
    planes[i].payload = p;
    p += planes[i].size;
  }
  if (p != end) corrupt("bytes after its last plane");
}

}  // namespace bf16codecs
