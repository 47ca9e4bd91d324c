#pragma once

// Growing frames: a directory, and behind it one frame for each version (docs/format_growing.md).

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "format/constants.h"
#include "format/errors.h"
#include "format/frame.h"

namespace bf16codecs {

// Where a version's frame ends in the growing frame, and what it is coded against.
struct GrowingEntry {
  uint64_t end = 0;
  uint16_t parent = kNoParent;

  bool has_parent() const { return parent != kNoParent; }
};

// What the directory says.
struct GrowingIndex {
  DType dtype = DType::bfloat16;
  unsigned block_log2 = 0;
  uint64_t version_size = 0;          // raw
  uint32_t room = 0;                  // for how many versions
  std::vector<GrowingEntry> entries;  // of those that are there

  uint64_t directory_size() const { return kGrowingHeader + uint64_t{room} * kGrowingEntry; }
  uint64_t raw_size() const { return room * version_size; }
  uint64_t begin(size_t version) const {
    return version == 0 ? directory_size() : entries[version - 1].end;
  }
  uint64_t frame_size(size_t version) const { return entries[version].end - begin(version); }
  // Where the last version ends.
  uint64_t end() const { return begin(entries.size()); }
};

// Whether the first bytes of a frame are those of a growing one.
bool is_growing(const uint8_t* bytes, size_t size);

// How many bytes the directory has of which these are the first. Throws as read_growing() does.
uint64_t growing_directory_size(const uint8_t* bytes, size_t size);

// Reads a directory. `size` is how many bytes of the growing frame there are. Throws
// UnsupportedVersionError, CorruptDataError, or TruncatedDataError if it is not all there.
GrowingIndex read_growing(const uint8_t* bytes, size_t size);

// How many bytes the head of a version's frame has, of which `size` are there. Throws as
// read_header() does.
uint64_t growing_head_size(const GrowingIndex& index, size_t version, const uint8_t* bytes,
                           size_t size);

// Reads the head of a version's frame, of which there are `size` bytes, and compares it with the
// directory. Throws as read_index() does.
FrameIndex read_growing_frame(const GrowingIndex& index, size_t version, const uint8_t* bytes,
                              size_t size);

// Throws std::invalid_argument for a directory that the format does not have.
void check_growing(const GrowingIndex& index);

// Writes the directory, which is sound, to its directory_size() bytes.
void write_growing(const GrowingIndex& index, uint8_t* bytes);

void write_growing_entry(const GrowingEntry& entry, uint8_t* bytes);

// Calls read(), and names the version in its errors. That a base is not the frame's is damage,
// since it is the parent.
template <typename Read>
auto in_version(size_t version, Read read) -> decltype(read()) {
  const std::string where = "version " + std::to_string(version) + ": ";
  try {
    return read();
  } catch (const UnsupportedVersionError& error) {
    throw UnsupportedVersionError(where + error.what());
  } catch (const TruncatedDataError& error) {
    throw TruncatedDataError(where + error.what());
  } catch (const BaseMismatchError&) {
    throw CorruptDataError(where + "its parent is not what it was encoded against");
  } catch (const CorruptDataError& error) {
    throw CorruptDataError(where + error.what());
  } catch (const CodecError& error) {
    throw CodecError(where + error.what());
  }
}

}  // namespace bf16codecs
