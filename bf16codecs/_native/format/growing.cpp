#include "format/growing.h"

#include <algorithm>
#include <stdexcept>

#include "format/checksum.h"
#include "format/little_endian.h"
#include "format/names.h"

namespace bf16codecs {
namespace {

// Offsets of the header's fields, and of an entry's.
constexpr size_t kVersionAt = 4, kCodecAt = 5, kLayoutAt = 6, kBlockAt = 7, kRawSizeAt = 8,
                 kRoomAt = 16, kZeroAt = 20, kSumAt = 28;
constexpr size_t kParentAt = 8, kEntryZeroAt = 10, kEntrySumAt = 12;

[[noreturn]] void damaged(const std::string& what) {
  throw CorruptDataError("growing frame: " + what);
}

[[noreturn]] void truncated(uint64_t expected, size_t size) {
  throw TruncatedDataError("the growing frame has " + counted(size, "byte") + " of at least " +
                           std::to_string(expected));
}

// Describes the first invalid field of a directory; empty if all are valid.
std::string fault_of(const GrowingIndex& index) {
  const size_t width = item_size(index.dtype);
  if (index.block_log2 < kMinBlockLog2 || width << index.block_log2 > kMaxBlockBytes) {
    return "block size out of range";
  }
  if (index.version_size == 0 || index.version_size % width != 0) {
    return "versions of " + counted(index.version_size, "byte") + ", which are no whole items";
  }
  if (index.room == 0 || index.room >= kNoParent) {
    return "room for " + counted(index.room, "version");
  }
  if (index.version_size > INT64_MAX / index.room) return "versions larger than any memory";
  return {};
}

GrowingIndex read_growing_header(const uint8_t* bytes, size_t size) {
  check_magic_and_version(bytes, size);
  if (size < kGrowingHeader) truncated(kGrowingHeader, size);
  if (load_le<uint32_t>(bytes + kSumAt) != checksum(bytes, kSumAt)) {
    damaged("the checksum of its header does not match");
  }
  if (bytes[kVersionAt] != kFormatVersion) {
    damaged("there is none of version " + std::to_string(bytes[kVersionAt]));
  }
  if (bytes[kLayoutAt] >= kDTypes) damaged("unknown layout " + std::to_string(bytes[kLayoutAt]));
  if (bytes[kBlockAt] >= 32 || load_le<uint64_t>(bytes + kZeroAt) != 0) {
    damaged("unknown bits of its header");
  }
  GrowingIndex index;
  index.dtype = DType{bytes[kLayoutAt]};
  index.block_log2 = bytes[kBlockAt];
  index.version_size = load_le<uint64_t>(bytes + kRawSizeAt);
  index.room = load_le<uint32_t>(bytes + kRoomAt);
  if (const std::string fault = fault_of(index); !fault.empty()) damaged(fault);
  return index;
}

GrowingEntry read_entry(const GrowingIndex& index, const uint8_t* bytes) {
  const size_t version = index.entries.size();
  const std::string which = "entry " + std::to_string(version);
  if (load_le<uint32_t>(bytes + kEntrySumAt) != checksum(bytes, kEntrySumAt)) {
    damaged("the checksum of " + which + " does not match");
  }
  const GrowingEntry entry{load_le<uint64_t>(bytes), load_le<uint16_t>(bytes + kParentAt)};
  if (load_le<uint16_t>(bytes + kEntryZeroAt) != 0) damaged("unknown bits of " + which);
  if (entry.end <= index.end()) damaged(which + " ends before it begins");
  if (entry.has_parent() && entry.parent >= version) {
    damaged("the parent of " + which + " is no earlier version");
  }
  return entry;
}

}  // namespace

bool is_growing(const uint8_t* bytes, size_t size) {
  return size > kCodecAt && std::equal(std::begin(kMagic), std::end(kMagic), bytes) &&
         bytes[kCodecAt] == kGrowingCodec;
}

uint64_t growing_directory_size(const uint8_t* bytes, size_t size) {
  return read_growing_header(bytes, size).directory_size();
}

GrowingIndex read_growing(const uint8_t* bytes, size_t size) {
  GrowingIndex index = read_growing_header(bytes, size);
  if (size < index.directory_size()) truncated(index.directory_size(), size);
  bool has_ended = false;
  for (uint32_t v = 0; v < index.room; ++v) {
    const uint8_t* const entry = bytes + kGrowingHeader + size_t{v} * kGrowingEntry;
    const bool is_there = std::any_of(entry, entry + kGrowingEntry, [](uint8_t b) { return b; });
    if (is_there && has_ended) damaged("an entry behind one of a version that is not there");
    if (is_there) index.entries.push_back(read_entry(index, entry));
    has_ended = !is_there;
  }
  if (index.entries.empty()) damaged("no version is there");
  return index;
}

uint64_t growing_head_size(const GrowingIndex& index, size_t version, const uint8_t* bytes,
                           size_t size) {
  return in_version(version, [&] {
    const uint64_t head_size = read_header(bytes, size).head_size();
    if (head_size > index.frame_size(version)) {
      throw CorruptDataError("its head has " + counted(head_size, "byte") + ", its frame " +
                             std::to_string(index.frame_size(version)));
    }
    return head_size;
  });
}

FrameIndex read_growing_frame(const GrowingIndex& index, size_t version, const uint8_t* bytes,
                              size_t size) {
  return in_version(version, [&] {
    FrameIndex frame = read_index(bytes, size);
    const Header& header = frame.header;
    if (header.layout.dtype != index.dtype || header.block_log2 != index.block_log2 ||
        header.raw_size != index.version_size || header.versions != 1) {
      throw CorruptDataError(
          "its frame has another dtype, block size or size than the directory says");
    }
    if (header.needs_base() != index.entries[version].has_parent()) {
      throw CorruptDataError(header.needs_base() ? "its frame needs a base, and it has no parent"
                                                 : "its frame has no differences to its parent");
    }
    if (frame.frame_size() != index.frame_size(version)) {
      throw CorruptDataError("its frame has " + counted(frame.frame_size(), "byte") + ", and " +
                             std::to_string(index.frame_size(version)) + " in the directory");
    }
    return frame;
  });
}

void check_growing(const GrowingIndex& index) {
  if (const std::string fault = fault_of(index); !fault.empty()) {
    throw std::invalid_argument("there is no growing frame like that: " + fault);
  }
}

void write_growing(const GrowingIndex& index, uint8_t* bytes) {
  std::fill_n(bytes, static_cast<size_t>(index.directory_size()), uint8_t{0});
  std::copy(std::begin(kMagic), std::end(kMagic), bytes);
  bytes[kVersionAt] = kFormatVersion;
  bytes[kCodecAt] = kGrowingCodec;
  bytes[kLayoutAt] = static_cast<uint8_t>(index.dtype);
  bytes[kBlockAt] = static_cast<uint8_t>(index.block_log2);
  store_le(bytes + kRawSizeAt, index.version_size);
  store_le(bytes + kRoomAt, index.room);
  store_le(bytes + kSumAt, checksum(bytes, kSumAt));
  uint8_t* entry = bytes + kGrowingHeader;
  for (size_t v = 0; v < index.entries.size(); ++v, entry += kGrowingEntry) {
    write_growing_entry(index.entries[v], entry);
  }
}

void write_growing_entry(const GrowingEntry& entry, uint8_t* bytes) {
  store_le(bytes, entry.end);
  store_le(bytes + kParentAt, entry.parent);
  store_le(bytes + kEntryZeroAt, uint16_t{0});
  store_le(bytes + kEntrySumAt, checksum(bytes, kEntrySumAt));
}

}  // namespace bf16codecs
