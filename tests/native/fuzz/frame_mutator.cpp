#include "frame_mutator.h"

#include <algorithm>

#include "block/block.h"
#include "core.h"
#include "format/checksum.h"
#include "format/little_endian.h"
#include "growing_mutator.h"

// libFuzzer's own mutations: of bytes, and of numbers that it has seen compared.
extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

namespace bf16codecs::fuzz {
namespace {

constexpr size_t kMostGrowth = 64;

// A block taken apart; what does not parse is one payload.
struct BlockParts {
  struct Plane {
    uint8_t mode;
    Bytes payload;
  };
  std::vector<Plane> planes;

  BlockParts(size_t width, size_t n, const Bytes& block) {
    PlaneView views[kMaxItemSize];
    if (!error_of([&] { parse_block(width, n, block.data(), block.size(), views); }).empty()) {
      return;
    }
    for (size_t p = 0; p < width; ++p) {
      planes.push_back({static_cast<uint8_t>(views[p].mode),
                        Bytes(views[p].payload, views[p].payload + views[p].size)});
    }
  }

  Bytes joined() const {
    Bytes block;
    for (const Plane& plane : planes) block.push_back(plane.mode);
    for (const Plane& plane : planes) {
      if (plane.mode >= kModes || !is_coded(Mode{plane.mode})) continue;
      block.resize(block.size() + 4);
      store_le(block.data() + block.size() - 4, static_cast<uint32_t>(plane.payload.size()));
    }
    for (size_t p = planes.size(); p-- != 0;) {
      block.insert(block.end(), planes[p].payload.begin(), planes[p].payload.end());
    }
    return block;
  }
};

class FrameMutator {
 public:
  FrameMutator(const Bytes& frame, unsigned seed) : random_(seed) {
    is_frame_ = error_of([&] { index_ = read_index(frame.data(), frame.size()); }).empty();
    if (!is_frame_) return;
    // Models of versions are kept apart.
    if (!index_.versions.empty() && index_.header.has_model) {
      index_.model = write_versions(index_.versions);
    }
    for (size_t b = 0; b < index_.blocks(); ++b) {
      const uint64_t end = std::min<uint64_t>(index_.offsets[b + 1], frame.size());
      const uint64_t begin = std::min(index_.offsets[b], end);
      blocks_.emplace_back(frame.data() + begin, frame.data() + end);
    }
  }

  bool is_frame() const { return is_frame_; }

  void mutate() {
    const unsigned choice = random_.below(16);
    if (choice == 0) return mutate_header();
    if (choice == 1) return mutate_model();
    if (choice == 3 && index_.header.has_differences) return mutate_base();
    if (choice == 2 || blocks_.empty()) return mutate_blocks();
    mutate_block(random_.below(blocks_.size()));
  }

  // Writes all of it, with sizes and checksums that agree.
  Bytes joined() {
    Header& header = index_.header;
    if (!header.has_model) index_.model.clear();
    header.model_size = static_cast<uint32_t>(index_.model.size());
    index_.tail.resize(header.tail_size());
    index_.checksums.resize(header.has_checksums ? blocks_.size() : 0);
    index_.base_checksums.resize(header.needs_base() ? blocks_.size() : 0);
    index_.offsets.assign(1, header.table_at() + blocks_.size() * header.table_entry() +
                                 index_.tail.size() + index_.model.size());
    for (const Bytes& block : blocks_) {
      index_.offsets.push_back(index_.offsets.back() + block.size());
    }
    Bytes frame(static_cast<size_t>(index_.offsets[0]));
    write_head(index_, frame.data());
    for (const Bytes& block : blocks_) frame.insert(frame.end(), block.begin(), block.end());
    return frame;
  }

 private:
  void mutate_bytes(Bytes& bytes) {
    const size_t size = bytes.size();
    bytes.resize(size + kMostGrowth);
    bytes.resize(LLVMFuzzerMutate(bytes.data(), size, bytes.size()));
  }

  // Seldom of no bytes, which stand for numbers as well.
  void mutate_model() {
    index_.header.has_model = true;
    if (!index_.header.has_differences || index_.versions.size() != index_.header.versions) {
      return mutate_bytes(index_.model);
    }
    mutate_version(index_.versions[random_.below(index_.versions.size())]);
    index_.model = write_versions(index_.versions);
  }

  void mutate_version(Version& version) {
    switch (random_.below(6)) {
      case 0:
        version.kind = ModelKind{static_cast<uint8_t>(random_.below(kModelKinds + 1))};
        break;
      case 1:
        version.parent = static_cast<uint16_t>(random_.below(index_.versions.size()));
        break;
      case 2:
        version.parent = random_.below(2) == 0 ? kNoParent : uint16_t{0};
        break;
      case 3:
        version = index_.versions[random_.below(index_.versions.size())];
        break;
      default:
        mutate_bytes(version.model);
    }
  }

  // Another base, or one version more, with the blocks of the last one.
  void mutate_base() {
    Header& header = index_.header;
    const size_t versions = index_.versions.size();
    if (header.versions == 1 || versions != header.versions || random_.below(4) == 0) {
      header.base_digest = random_.below(2) == 0 ? random_.below(4) : random_.next();
      return;
    }
    const size_t blocks = static_cast<size_t>(header.version_blocks());
    if (blocks > blocks_.size()) return;
    header.raw_size += header.version_items() * header.width();
    ++header.versions;
    index_.versions.push_back(index_.versions.back());
    for (size_t i = 0; i < blocks; ++i) blocks_.push_back(blocks_[blocks_.size() - blocks]);
    index_.model = write_versions(index_.versions);
  }

  // The values that read_header() takes; others come of mutating bytes.
  void mutate_header() {
    Header& header = index_.header;
    const uint64_t step = uint64_t{1} << random_.below(header.block_log2 + 3);
    switch (random_.below(9)) {
      case 0:
        header.layout.dtype = DType{static_cast<uint8_t>(random_.below(kDTypes))};
        break;
      case 1:
        header.layout.by_byte = !header.layout.by_byte;
        break;
      case 2:
        header.block_log2 = kMinBlockLog2 + random_.below(14);
        break;
      case 3:
        header.has_checksums = !header.has_checksums;
        break;
      case 4:
        header.has_model = !header.has_model;
        break;
      case 5:
        header.version = header.version == kFormatVersion ? kFirstVersion : kFormatVersion;
        break;
      case 6:
        header.has_differences = !header.has_differences, header.version = kFormatVersion;
        break;
      case 7:
        header.versions = static_cast<uint16_t>(1 + random_.below(4));
        break;
      default:
        header.raw_size += random_.below(2) == 0 ? step : 0 - step;
    }
  }

  // One block more or less, and as many items, or two that are swapped.
  void mutate_blocks() {
    const uint64_t block_size = index_.header.block_items() * index_.header.width();
    const size_t n = blocks_.size();
    if (n != 0 && index_.header.versions > 1) {
      const size_t from = random_.below(n), to = random_.below(n);
      if (from != to) blocks_[to] = blocks_[from];
    } else if (n == 0 || random_.below(3) == 0) {
      blocks_.push_back(n == 0 ? random_.bytes(8) : blocks_[random_.below(n)]);
      index_.header.raw_size += block_size;
    } else if (random_.below(2) == 0 && index_.header.raw_size >= block_size) {
      blocks_.erase(blocks_.begin() + random_.below(n));
      index_.header.raw_size -= block_size;
    } else {
      std::swap(blocks_[random_.below(n)], blocks_[random_.below(n)]);
    }
  }

  void mutate_block(size_t b) {
    const size_t width = index_.header.width();
    const bool is_known = b < index_.blocks() && index_.header.version_blocks() != 0;
    BlockParts parts(width, is_known ? index_.items(b, b + 1) : 0, blocks_[b]);
    if (parts.planes.empty() || random_.below(16) == 0) return mutate_bytes(blocks_[b]);
    BlockParts::Plane& plane = parts.planes[random_.below(parts.planes.size())];
    switch (random_.below(8)) {
      case 0:
        plane.mode = static_cast<uint8_t>(random_.below(kModes));
        break;
      case 1:
        plane = parts.planes[random_.below(parts.planes.size())];
        break;
      case 2:
      case 3:
        move_one(plane.payload);
        break;
      default:
        mutate_bytes(plane.payload);
    }
    blocks_[b] = parts.joined();
  }

  // From one byte of a table to another: frequencies still have the right sum.
  void move_one(Bytes& payload) {
    if (payload.empty()) return;
    const size_t table = std::min<size_t>(payload.size(), 48);
    uint8_t &from = payload[random_.below(table)], &to = payload[random_.below(table)];
    const uint8_t moved = static_cast<uint8_t>(random_.below(from + 1u));
    from = static_cast<uint8_t>(from - moved);
    to = static_cast<uint8_t>(to + moved);
  }

  test::Random random_;
  bool is_frame_;
  FrameIndex index_;
  std::vector<Bytes> blocks_;
};

// Gives a frame the checksums of its head, as far as it has one.
void repair(Bytes& frame) {
  if (frame.size() < kHeaderSize + kModelSizeField) return;
  uint8_t* const head = frame.data() + kHeaderSize;
  store_le(frame.data() + kHeaderChecked, checksum(frame.data(), kHeaderChecked));
  const bool has_model = (frame[7] & 0x40) != 0;
  store_le(head + 4, has_model ? checksum(head, 4) : load_le<uint32_t>(head + 4));
  const size_t base_at = kHeaderSize + (has_model ? kModelSizeField : 0);
  if ((frame[7] & 0x20) != 0 && frame.size() >= base_at + kBaseField) {
    uint8_t* const field = frame.data() + base_at;
    store_le(field + kBaseField - 4, checksum(field, kBaseField - 4));
  }
  Header header;
  if (!error_of([&] { header = read_header(frame.data(), frame.size()); }).empty()) return;
  if (header.blocks() > frame.size() || header.head_size() > frame.size()) return;
  store_le(frame.data() + kHeaderChecked + 4,
           checksum(head, static_cast<size_t>(header.head_size()) - kHeaderSize));
}

}  // namespace

size_t mutate_frame(uint8_t* data, size_t size, size_t max_size, unsigned seed) {
  use(*instruction_sets().back());
  test::Random random(seed);
  const bool whole = random.below(16) == 0, sound = random.below(32) != 0;
  Bytes frame(data, data + size);
  if (random.below(32) == 0) frame = as_growing(frame, seed);
  if (is_growing(frame.data(), frame.size())) {
    frame = mutated_growing(frame, max_size, seed);
    frame.resize(std::min(frame.size(), max_size));
    std::copy(frame.begin(), frame.end(), data);
    return frame.size();
  }
  FrameMutator mutator(frame, seed);
  if (whole || !mutator.is_frame()) {
    frame.resize(max_size);
    frame.resize(LLVMFuzzerMutate(frame.data(), size, max_size));
  } else {
    for (unsigned n = 1 + random.below(3); n != 0; --n) mutator.mutate();
    frame = mutator.joined();
  }
  if (sound) repair(frame);
  frame.resize(std::min(frame.size(), max_size));
  std::copy(frame.begin(), frame.end(), data);
  return frame.size();
}

}  // namespace bf16codecs::fuzz
