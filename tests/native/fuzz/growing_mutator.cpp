#include "growing_mutator.h"

#include <algorithm>

#include "codec/base.h"
#include "format/checksum.h"
#include "format/little_endian.h"
#include "frame_mutator.h"

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

namespace bf16codecs::fuzz {
namespace {

constexpr size_t kMostGrowth = 64;

class GrowingMutator {
 public:
  GrowingMutator(const GrowingIndex& index, const Bytes& growing, unsigned seed)
      : random_(seed), index_(index) {
    for (size_t v = 0; v < index.entries.size(); ++v) {
      const uint64_t end = std::min<uint64_t>(index.entries[v].end, growing.size());
      const uint64_t begin = std::min(index.begin(v), end);
      frames_.emplace_back(growing.data() + begin, growing.data() + end);
    }
  }

  void mutate(size_t max_size) {
    const size_t version = random_.below(frames_.size());
    switch (random_.below(8)) {
      case 0:
        return mutate_header();
      case 1:
        return mutate_parent(version);
      case 2:
        return mutate_versions(version);
      case 3:
        rest_ = random_.bytes(random_.below(kMostGrowth));
        return;
      default:
        mutate_frame_of(version, max_size);
    }
  }

  // Writes all of it, with ends and checksums that agree.
  Bytes joined() {
    index_.room = std::max(index_.room, static_cast<uint32_t>(frames_.size()));
    index_.entries.resize(frames_.size());
    uint64_t end = index_.directory_size();
    for (size_t v = 0; v < frames_.size(); ++v) index_.entries[v].end = end += frames_[v].size();
    Bytes growing(static_cast<size_t>(index_.directory_size()));
    write_growing(index_, growing.data());
    for (const Bytes& frame : frames_) growing.insert(growing.end(), frame.begin(), frame.end());
    growing.insert(growing.end(), rest_.begin(), rest_.end());
    return growing;
  }

  // Gives frames the digests of their parents, as far as these can be decoded.
  void repair_bases() {
    std::vector<Bytes> decoded(frames_.size());
    for (size_t v = 0; v < frames_.size(); ++v) {
      const GrowingEntry& entry = index_.entries[v];
      const Bytes* base = entry.has_parent() && entry.parent < v ? &decoded[entry.parent] : nullptr;
      if (!error_of([&] { decoded[v] = decode_repaired(frames_[v], base); }).empty()) return;
    }
  }

 private:
  static Bytes decode_repaired(Bytes& frame, const Bytes* base) {
    FrameIndex index;
    if (!is_frame_to_decode(frame.data(), frame.size(), index)) return {};
    const bool has_base = base != nullptr && base->size() == index.header.raw_size;
    if (index.header.needs_base() && !has_base) return {};
    if (index.header.needs_base()) {
      const BaseDigest digest = digest_base(index.header, base->data());
      index.header.base_digest = digest.digest;
      index.base_checksums = digest.blocks;
      if (index.header.has_model) index.model = write_versions(index.versions);
      write_head(index, frame.data());
    }
    const Outcome outcome = decode_all(index, frame.data(), has_base ? *base : Bytes());
    if (!outcome.error.empty()) return {};
    return {outcome.bytes.get(), outcome.bytes.get() + outcome.size};
  }

  void mutate_header() {
    const uint64_t width = item_size(index_.dtype);
    switch (random_.below(4)) {
      case 0:
        index_.dtype = DType{static_cast<uint8_t>(random_.below(kDTypes))};
        break;
      case 1:
        index_.block_log2 = random_.below(32);
        break;
      case 2:
        index_.room = random_.below(4) == 0 ? random_.below(65536) : random_.below(8);
        break;
      default:
        index_.version_size += random_.below(2) == 0 ? width : 0 - width;
    }
  }

  void mutate_parent(size_t version) {
    const bool has_none = random_.below(3) == 0;
    index_.entries[version].parent =
        has_none ? kNoParent : static_cast<uint16_t>(random_.below(version + 1));
  }

  // One more, like another one, or the last one less; or two that are swapped.
  void mutate_versions(size_t version) {
    const size_t last = frames_.size() - 1;
    if (random_.below(2) == 0) {
      frames_.push_back(frames_[version]);
      index_.entries.push_back(index_.entries[version]);
    } else if (last != 0 && random_.below(2) == 0) {
      frames_.pop_back();
      index_.entries.pop_back();
    } else {
      std::swap(frames_[version], frames_[last]);
    }
  }

  void mutate_frame_of(size_t version, size_t max_size) {
    Bytes& frame = frames_[version];
    const size_t size = frame.size();
    frame.resize(std::max(size, std::min(size + kMostGrowth, max_size)));
    frame.resize(
        mutate_frame(frame.data(), size, frame.size(), static_cast<unsigned>(random_.next())));
  }

  test::Random random_;
  GrowingIndex index_;
  std::vector<Bytes> frames_;
  Bytes rest_;
};

// Gives a growing frame the checksums of its header and entries, as far as it has them.
void repair(Bytes& growing) {
  if (growing.size() < kGrowingHeader) return;
  store_le(growing.data() + kGrowingHeader - 4, checksum(growing.data(), kGrowingHeader - 4));
  const uint64_t room = load_le<uint32_t>(growing.data() + 16);
  for (uint64_t v = 0; v < room && growing.size() - kGrowingHeader >= (v + 1) * kGrowingEntry;
       ++v) {
    uint8_t* const entry = growing.data() + kGrowingHeader + v * kGrowingEntry;
    const bool is_there = std::any_of(entry, entry + kGrowingEntry, [](uint8_t b) { return b; });
    if (is_there) store_le(entry + 12, checksum(entry, 12));
  }
}

}  // namespace

Bytes mutated_growing(const Bytes& growing, size_t max_size, unsigned seed) {
  test::Random random(seed);
  GrowingIndex index;
  const bool is_sound =
      error_of([&] { index = read_growing(growing.data(), growing.size()); }).empty();
  if (!is_sound || random.below(8) == 0) {
    Bytes bytes = growing;
    bytes.resize(max_size);
    bytes.resize(LLVMFuzzerMutate(bytes.data(), growing.size(), max_size));
    if (random.below(8) != 0) repair(bytes);
    return bytes;
  }
  GrowingMutator mutator(index, growing, seed);
  for (unsigned n = 1 + random.below(3); n != 0; --n) mutator.mutate(max_size);
  if (random.below(8) != 0) mutator.repair_bases();
  return mutator.joined();
}

Bytes as_growing(const Bytes& frame, unsigned seed) {
  FrameIndex index;
  if (!is_frame_to_decode(frame.data(), frame.size(), index)) return frame;
  const Header& header = index.header;
  if (header.versions != 1 || header.needs_base() || header.tail_size() != 0) return frame;
  GrowingIndex growing{
      header.layout.dtype, header.block_log2, header.raw_size, 2 + seed % 3, {GrowingEntry{}}};
  growing.entries[0].end = growing.directory_size() + frame.size();
  Bytes bytes(static_cast<size_t>(growing.directory_size()));
  write_growing(growing, bytes.data());
  bytes.insert(bytes.end(), frame.begin(), frame.end());
  return bytes;
}

}  // namespace bf16codecs::fuzz
