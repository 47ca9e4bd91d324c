// Ranges of blocks: what they give is what each of their blocks gives alone, and so with a whole
// frame, in which a version's blocks are coded against those of another.

#include <algorithm>

#include "core.h"

namespace bf16codecs::fuzz {
namespace {

constexpr size_t kMostBlocks = 24;  // each block alone reads the frame's model again

// Joins the outcomes of blocks that were decoded one by one: the first error is the range's.
Outcome joined(const std::vector<Outcome>& blocks, size_t first, size_t last) {
  Outcome all;
  for (size_t b = first; b < last; ++b) {
    if (!blocks[b].error.empty()) {
      all.error = blocks[b].error;
      return all;
    }
    all.size += blocks[b].size;
  }
  all.bytes.reset(new uint8_t[all.size]);
  uint8_t* out = all.bytes.get();
  for (size_t b = first; b < last; ++b) {
    out = std::copy_n(blocks[b].bytes.get(), blocks[b].size, out);
  }
  return all;
}

// What blocks [first, last) are coded against: of the base, or of their version's parent. Returns
// whether it is known.
bool find_base(const FrameIndex& index, const Bytes& base, const std::vector<Outcome>& blocks,
               size_t first, size_t last, Bytes& part) {
  const Header& header = index.header;
  if (!header.has_differences) return true;
  const size_t per_version = static_cast<size_t>(header.version_blocks()),
               version = first / per_version;
  if (!index.versions[version].has_base()) return true;
  if (header.needs_base()) {
    const uint8_t* const at = base.data() + header.first_item(first) * header.width();
    part.assign(at, at + index.items(first, last) * header.width());
    return true;
  }
  const size_t before = (version - index.versions[version].parent) * per_version;
  for (size_t b = first; b < last; ++b) {
    const Outcome& parent = blocks[b - before];
    if (!parent.error.empty()) return false;
    part.insert(part.end(), parent.bytes.get(), parent.bytes.get() + parent.size);
  }
  return true;
}

void test_range(const FrameIndex& index, const uint8_t* frame, const Bytes& base,
                const std::vector<Outcome>& blocks, size_t first, size_t last) {
  Bytes part;
  if (first == last || !find_base(index, base, blocks, first, last, part)) return;
  CHECK(decode(index, frame, first, last, part) == joined(blocks, first, last));
}

void test(const FrameIndex& index, const uint8_t* frame) {
  const size_t all = index.blocks(), n = static_cast<size_t>(index.header.version_blocks());
  const Bytes base = base_of(index);
  std::vector<Outcome> blocks;
  for (size_t b = 0; b < all; ++b) {
    Bytes part;
    const bool is_known = find_base(index, base, blocks, b, b + 1, part);
    blocks.push_back(is_known ? decode(index, frame, b, b + 1, part) : Outcome{"no parent", {}, 0});
  }
  for (size_t at = 0; at < all; at += n) {
    const size_t ranges[][2] = {{0, n}, {0, n / 2 + 1}, {n / 2, n}, {n / 3, n - n / 3}};
    for (const auto& [first, last] : ranges) {
      test_range(index, frame, base, blocks, at + first, at + last);
    }
  }
  const Outcome whole = decode_all(index, frame, base), by_blocks = joined(blocks, 0, all);
  CHECK(by_blocks.error.empty() ? whole == by_blocks : !whole.error.empty());
}

// Decodes a version's blocks one by one, each against that of its parent; the first error is kept.
Outcome by_blocks(const Growing& growing, const uint8_t* data, size_t version,
                  const std::vector<Outcome>& before) {
  const FrameIndex& frame = growing.frames[version];
  const GrowingEntry& entry = growing.index.entries[version];
  std::vector<Outcome> blocks;
  size_t at = 0;
  for (size_t b = 0; b < frame.blocks(); ++b) {
    Bytes base;
    std::string error;
    const size_t size = frame.raw_size(b, b + 1);
    if (entry.has_parent()) {
      const Outcome& parent = before[entry.parent];
      if (!parent.error.empty()) return {"no parent", {}, 0};
      base.assign(parent.bytes.get() + at, parent.bytes.get() + at + size);
      error = error_of([&] { check_base_blocks(frame, base.data(), b, b + 1); });
    }
    at += size;
    if (error.empty()) {
      blocks.push_back(decode(frame, data + growing.index.begin(version), b, b + 1, base));
    } else {
      blocks.push_back({error, {}, 0});
    }
  }
  return joined(blocks, 0, blocks.size());
}

// What the whole of a growing frame gives, its blocks give.
void test(const Growing& growing, const uint8_t* data) {
  const Outcome whole = decode_all(growing, data);
  std::vector<Outcome> versions;
  for (size_t v = 0; v < growing.frames.size(); ++v) {
    versions.push_back(by_blocks(growing, data, v, versions));
  }
  const Outcome all = joined(versions, 0, versions.size());
  if (whole.error.empty()) CHECK(all == whole);
}

}  // namespace
}  // namespace bf16codecs::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace bf16codecs;
  FrameIndex index;
  fuzz::Growing growing;
  if (fuzz::is_growing_to_decode(data, size, growing)) {
    fuzz::use(*fuzz::instruction_sets().back());
    fuzz::test(growing, data);
  }
  if (fuzz::is_frame_to_decode(data, size, index) && index.blocks() <= fuzz::kMostBlocks) {
    fuzz::use(*fuzz::instruction_sets().back());
    fuzz::test(index, data);
  }
  return 0;
}
