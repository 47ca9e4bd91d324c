#include "format/frame.h"

#include <algorithm>
#include <bit>
#include <span>
#include <stdexcept>
#include <string>

#include "format/checksum.h"
#include "format/errors.h"
#include "format/little_endian.h"
#include "format/names.h"

namespace bf16codecs {
namespace {

// Offsets of the header's fields.
constexpr size_t kVersionAt = 4, kCodecAt = 5, kLayoutAt = 6, kBlockAt = 7, kRawSizeAt = 8;
constexpr size_t kHeaderSumAt = 16, kTableSumAt = 20;
constexpr uint8_t kByByteFlag = 0x10, kDifferenceFlag = 0x20, kModelFlag = 0x40,
                  kChecksumFlag = 0x80;

[[noreturn]] void truncated(uint64_t expected, size_t size) {
  throw TruncatedDataError("the frame has " + counted(size, "byte") + " of at least " +
                           std::to_string(expected));
}

Header parse_fields(const uint8_t* bytes) {
  Header header;
  header.version = bytes[kVersionAt];
  const uint8_t codec = bytes[kCodecAt], layout = bytes[kLayoutAt], block = bytes[kBlockAt];
  if (!find_number(kCodecNames, codec)) {
    throw CorruptDataError("header: unknown codec " + std::to_string(codec));
  }
  if ((layout & 0xEF) >= kDTypes) {
    throw CorruptDataError("header: unknown layout " + std::to_string(layout));
  }
  header.codec = Codec{codec};
  header.layout = {DType{static_cast<uint8_t>(layout & 15)}, (layout & kByByteFlag) != 0};
  header.block_log2 = block & 31;
  header.has_checksums = (block & kChecksumFlag) != 0;
  header.has_model = (block & kModelFlag) != 0;
  header.has_differences = (block & kDifferenceFlag) != 0;
  if (header.has_differences && header.version == kFirstVersion) {
    throw CorruptDataError("header: differences in a frame of version 1");
  }
  if (header.block_log2 < kMinBlockLog2 || header.block_items() * header.width() > kMaxBlockBytes) {
    throw CorruptDataError("header: block size out of range");
  }
  if ((header.has_model || header.has_differences) && header.layout.by_byte) {
    throw CorruptDataError("header: a model of planes that are split by byte");
  }
  header.raw_size = load_le<uint64_t>(bytes + kRawSizeAt);
  return header;
}

// Fields with checksums of their own: a reader of ranges relies on them before it has the whole
// head.
void check_field(const uint8_t* field, size_t size, const char* what) {
  if (load_le<uint32_t>(field + size) != checksum(field, size)) {
    throw CorruptDataError(std::string("header: the checksum of ") + what + " does not match");
  }
}

void parse_base_field(const uint8_t* field, Header& header) {
  check_field(field, kBaseField - 4, "the base");
  header.versions = load_le<uint16_t>(field);
  header.base_digest = load_le<uint64_t>(field + 4);
  if (header.versions == 0 || header.versions == kNoParent) {
    throw CorruptDataError("header: there are no " + counted(header.versions, "version"));
  }
  if (load_le<uint16_t>(field + 2) != 0) throw CorruptDataError("header: unknown bits of the base");
  if (header.versions == 1) return;
  if (header.raw_size % (header.versions * header.width()) != 0) {
    throw CorruptDataError("header: " + counted(header.raw_size, "byte") + " are not " +
                           std::to_string(header.versions) + " versions of whole items");
  }
  if (header.base_digest != 0 || !header.has_model) {
    throw CorruptDataError("header: versions without a table, or with a base outside");
  }
}

[[noreturn]] void bad_versions(const char* what) {
  throw CorruptDataError(std::string("versions: ") + what);
}

void check_version(const Version& version, size_t number, size_t size) {
  if (version.parent != kNoParent && version.parent >= std::max<size_t>(number, 1)) {
    bad_versions("a parent that is no earlier version");
  }
  if (number == 0 && version.parent != kNoParent) bad_versions("a parent of the first one");
  if (version.kind == ModelKind::difference && !version.has_base()) {
    bad_versions("a difference model without a base");
  }
  if (version.kind == ModelKind::none && size != 0) bad_versions("a model of no kind");
}

ModelKind kind_from(uint8_t kind) {
  if (kind >= kModelKinds) bad_versions("an unknown kind of model");
  return ModelKind{kind};
}

// The models of a frame's versions.
std::vector<Version> parse_versions(const Header& header, std::span<const uint8_t> model) {
  std::vector<Version> versions(header.versions);
  if (header.versions == 1) {
    versions[0].parent = 0;
    if (!header.has_model) return versions;
    if (model.empty() || model[0] == 0) bad_versions("a model of no kind");
    versions[0].kind = kind_from(model[0]);
    versions[0].model.assign(model.begin() + 1, model.end());
    return versions;
  }
  if (model.size() < kVersionEntry * versions.size()) bad_versions("a table that is cut off");
  const uint8_t* entry = model.data();
  size_t at = kVersionEntry * versions.size();
  for (size_t v = 0; v < versions.size(); ++v, entry += kVersionEntry) {
    const size_t size = load_le<uint32_t>(entry + 3);
    versions[v].parent = load_le<uint16_t>(entry);
    versions[v].kind = kind_from(entry[2]);
    check_version(versions[v], v, size);
    if (size > model.size() - at) bad_versions("models past their end");
    versions[v].model.assign(model.begin() + static_cast<std::ptrdiff_t>(at),
                             model.begin() + static_cast<std::ptrdiff_t>(at + size));
    at += size;
  }
  if (at != model.size()) bad_versions("bytes after the models");
  return versions;
}

}  // namespace

void check_magic_and_version(const uint8_t* bytes, size_t size) {
  const size_t magic_size = std::min(size, sizeof kMagic);
  if (!std::equal(bytes, bytes + magic_size, kMagic)) {
    throw CorruptDataError("not a frame of bf16codecs: it does not begin with BF 16 C0 DE");
  }
  if (size <= kVersionAt) return;
  if (bytes[kVersionAt] < kFirstVersion) {
    throw CorruptDataError("header: there is no format version " +
                           std::to_string(bytes[kVersionAt]));
  }
  if (bytes[kVersionAt] > kFormatVersion) {
    throw UnsupportedVersionError("the frame has format version " +
                                  std::to_string(bytes[kVersionAt]) + ", this release reads " +
                                  std::to_string(kFirstVersion) + " to " +
                                  std::to_string(kFormatVersion) +
                                  ": upgrade bf16codecs, or, if no newer release wrote it, it is"
                                  " damaged: restore it from its source or a copy");
  }
}

size_t FrameIndex::items(size_t first, size_t last) const {
  if (first == last) return 0;
  return static_cast<size_t>(header.first_item(last) - header.first_item(first));
}

size_t FrameIndex::raw_size(size_t first, size_t last) const {
  return items(first, last) * header.width() + (last == blocks() ? tail.size() : 0);
}

unsigned block_log2_for(size_t block_items, size_t width) {
  const size_t items = block_items != 0 ? block_items : kDefaultBlockBytes / width;
  if (!std::has_single_bit(items) || items < size_t{1} << kMinBlockLog2 ||
      items > kMaxBlockBytes / width) {
    throw std::invalid_argument("block must be a power of two from " +
                                std::to_string(1u << kMinBlockLog2) + " to " +
                                std::to_string(kMaxBlockBytes / width) + " items");
  }
  return static_cast<unsigned>(std::countr_zero(items));
}

uint64_t frame_bound(uint64_t raw_size, size_t width, unsigned block_log2, uint16_t versions) {
  Header header;
  header.has_differences = versions != 0;
  header.versions = std::max<uint16_t>(1, versions);
  header.has_model = versions > 1;
  header.model_size = versions > 1 ? static_cast<uint32_t>(kVersionEntry * versions) : 0;
  header.layout.dtype = width == 1   ? DType::float8_e4m3fn
                        : width == 2 ? DType::bfloat16
                        : width == 4 ? DType::float32
                                     : DType::float64;
  header.block_log2 = block_log2;
  header.raw_size = raw_size;
  // A stored plane costs its mode byte; other modes are used only if they are smaller.
  return header.head_size() + header.blocks() * width + header.items() * width;
}

std::vector<uint8_t> write_versions(const std::vector<Version>& versions) {
  std::vector<uint8_t> bytes;
  if (versions.size() == 1) {
    bytes.push_back(static_cast<uint8_t>(versions[0].kind));
  } else {
    bytes.resize(kVersionEntry * versions.size());
  }
  uint8_t* entry = bytes.data();
  for (size_t v = 0; versions.size() > 1 && v < versions.size(); ++v, entry += kVersionEntry) {
    store_le(entry, versions[v].parent);
    entry[2] = static_cast<uint8_t>(versions[v].kind);
    store_le(entry + 3, static_cast<uint32_t>(versions[v].model.size()));
  }
  for (const Version& version : versions) {
    bytes.insert(bytes.end(), version.model.begin(), version.model.end());
  }
  return bytes;
}

Header read_header(const uint8_t* bytes, size_t size) {
  check_magic_and_version(bytes, size);
  if (size > kCodecAt && bytes[kCodecAt] == kGrowingCodec) {
    throw CorruptDataError("header: a growing frame, where one of its versions was expected");
  }
  if (size < kHeaderSize) truncated(kHeaderSize, size);
  if (load_le<uint32_t>(bytes + kHeaderSumAt) != checksum(bytes, kHeaderChecked)) {
    throw CorruptDataError("header: its checksum does not match");
  }
  Header header = parse_fields(bytes);
  if (header.has_model) {
    if (size < header.base_at()) truncated(header.base_at(), size);
    const uint8_t* const field = bytes + kHeaderSize;
    check_field(field, 4, "the model's size");
    header.model_size = load_le<uint32_t>(field);
  }
  if (header.has_differences) {
    if (size < header.table_at()) truncated(header.table_at(), size);
    parse_base_field(bytes + header.base_at(), header);
  }
  return header;
}

FrameIndex read_index(const uint8_t* bytes, size_t size) {
  FrameIndex index;
  const Header& header = index.header = read_header(bytes, size);
  // Checked before any arithmetic: a raw size near 2^64 would overflow.
  if (header.blocks() > size / header.table_entry() || header.head_size() > size) {
    truncated(header.table_at() +
                  std::min<uint64_t>(header.blocks(), UINT64_MAX / 16) * header.table_entry(),
              size);
  }
  const size_t head = static_cast<size_t>(header.head_size());
  if (load_le<uint32_t>(bytes + kTableSumAt) != checksum(bytes + kHeaderSize, head - kHeaderSize)) {
    throw CorruptDataError("block table: its checksum does not match");
  }
  const size_t blocks = static_cast<size_t>(header.blocks());
  index.offsets.reserve(blocks + 1);
  uint64_t offset = head;
  const uint8_t* entry = bytes + header.table_at();
  for (size_t b = 0; b < blocks; ++b, entry += header.table_entry()) {
    const uint32_t block_size = load_le<uint32_t>(entry);
    if (block_size == 0) {
      throw CorruptDataError("block table: block " + std::to_string(b) + " is empty");
    }
    index.offsets.push_back(offset);
    offset += block_size;
    const uint8_t* sum = entry + 4;
    if (header.has_checksums) index.checksums.push_back(load_le<uint32_t>(sum)), sum += 4;
    if (header.needs_base()) index.base_checksums.push_back(load_le<uint32_t>(sum));
  }
  index.offsets.push_back(offset);
  const uint8_t* const model = entry + header.tail_size();
  index.tail.assign(entry, model);
  if (header.has_differences) {
    index.versions = parse_versions(header, {model, header.model_size});
  } else {
    index.model.assign(model, model + header.model_size);
  }
  return index;
}

void check_frame_size(const FrameIndex& index, uint64_t size) {
  if (size < index.frame_size()) {
    throw TruncatedDataError("the frame has " + counted(size, "byte") + " of " +
                             std::to_string(index.frame_size()));
  }
  if (size > index.frame_size()) {
    throw CorruptDataError(counted(size - index.frame_size(), "byte") + " after the frame's end");
  }
}

void write_head(const FrameIndex& index, uint8_t* frame) {
  const Header& header = index.header;
  std::copy(std::begin(kMagic), std::end(kMagic), frame);
  frame[kVersionAt] = header.version;
  frame[kCodecAt] = static_cast<uint8_t>(header.codec);
  frame[kLayoutAt] = static_cast<uint8_t>(static_cast<unsigned>(header.layout.dtype) |
                                          (header.layout.by_byte ? kByByteFlag : 0u));
  frame[kBlockAt] = static_cast<uint8_t>(header.block_log2 | (header.has_model ? kModelFlag : 0u) |
                                         (header.has_differences ? kDifferenceFlag : 0u) |
                                         (header.has_checksums ? kChecksumFlag : 0u));
  store_le(frame + kRawSizeAt, header.raw_size);
  if (header.has_model) {
    store_le(frame + kHeaderSize, header.model_size);
    store_le(frame + kHeaderSize + 4, checksum(frame + kHeaderSize, 4));
  }
  if (header.has_differences) {
    uint8_t* const field = frame + header.base_at();
    store_le(field, header.versions);
    store_le(field + 2, uint16_t{0});
    store_le(field + 4, header.base_digest);
    store_le(field + kBaseField - 4, checksum(field, kBaseField - 4));
  }
  uint8_t* entry = frame + header.table_at();
  for (size_t b = 0; b < index.blocks(); ++b, entry += header.table_entry()) {
    store_le(entry, static_cast<uint32_t>(index.offsets[b + 1] - index.offsets[b]));
    uint8_t* sum = entry + 4;
    if (header.has_checksums) store_le(sum, index.checksums[b]), sum += 4;
    if (header.needs_base()) store_le(sum, index.base_checksums[b]);
  }
  entry = std::copy(index.tail.begin(), index.tail.end(), entry);
  entry = std::copy(index.model.begin(), index.model.end(), entry);
  store_le(frame + kHeaderSumAt, checksum(frame, kHeaderChecked));
  store_le(frame + kTableSumAt,
           checksum(frame + kHeaderSize, static_cast<size_t>(entry - frame) - kHeaderSize));
}

}  // namespace bf16codecs
