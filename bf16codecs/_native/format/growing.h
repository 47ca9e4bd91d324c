#pragma once

// Growing frames: a directory, followed by one frame for each version (docs/format_growing.md).

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "format/constants.h"
#include "format/errors.h"
#include "format/frame.h"

namespace bf16codecs {

// The end of a version's frame in the growing frame, and the version's parent.
struct GrowingEntry {
  uint64_t end = 0;
  uint16_t parent = kNoParent;

  bool has_parent() const { return parent != kNoParent; }
};

// The directory's content.
struct GrowingIndex {
  DType dtype = DType::bfloat16;
  unsigned block_log2 = 0;
  uint64_t version_size = 0;          // decoded bytes
  uint32_t room = 0;                  // number of versions that fit
  std::vector<GrowingEntry> entries;  // of the existing versions

  uint64_t directory_size() const { return kGrowingHeader + uint64_t{room} * kGrowingEntry; }
  uint64_t raw_size() const { return room * version_size; }
  uint64_t begin(size_t version) const {
    return version == 0 ? directory_size() : entries[version - 1].end;
  }
  uint64_t frame_size(size_t version) const { return entries[version].end - begin(version); }
  // The end of the last version.
  uint64_t end() const { return begin(entries.size()); }
};

// Tells from its first bytes whether a frame is a growing one.
bool is_growing(const uint8_t* bytes, size_t size);

// The size of a directory, from its first bytes. Throws as read_growing() does.
uint64_t growing_directory_size(const uint8_t* bytes, size_t size);

// Reads a directory from the first `size` bytes of a growing frame. Throws
// UnsupportedVersionError, CorruptDataError, or TruncatedDataError if the directory is incomplete.
GrowingIndex read_growing(const uint8_t* bytes, size_t size);

// The size of the head of a version's frame, from the first `size` bytes of the frame. Throws as
// read_header() does.
uint64_t growing_head_size(const GrowingIndex& index, size_t version, const uint8_t* bytes,
                           size_t size);

// Reads the head of a version's frame from the first `size` bytes of the frame, and checks it
// against the directory. Throws as read_index() does.
FrameIndex read_growing_frame(const GrowingIndex& index, size_t version, const uint8_t* bytes,
                              size_t size);

// Throws std::invalid_argument for a directory that the format does not allow.
void check_growing(const GrowingIndex& index);

// Writes a valid directory, directory_size() bytes.
void write_growing(const GrowingIndex& index, uint8_t* bytes);

void write_growing_entry(const GrowingEntry& entry, uint8_t* bytes);

// Calls read(), and names the version in its errors. A base mismatch means damage, since the base
// is a version of the same growing frame.
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
