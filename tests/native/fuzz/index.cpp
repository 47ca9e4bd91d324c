// Heads of frames, as readers of ranges see them, and the planes of blocks, as inspect() does.

#include <algorithm>

#include "block/block.h"
#include "core.h"
#include "format/zstd_frame.h"

namespace bf16codecs::fuzz {
namespace {

// A head has one spelling: what was read is written with the same bytes.
void test_head(FrameIndex index, const uint8_t* frame) {
  const size_t size = static_cast<size_t>(index.header.head_size());
  CHECK(index.offsets.front() == size);
  CHECK(std::is_sorted(index.offsets.begin(), index.offsets.end()));
  CHECK(index.blocks() == index.header.blocks());
  Bytes head(size);
  // Models of versions are kept apart.
  if (!index.versions.empty() && index.header.has_model) {
    index.model = write_versions(index.versions);
  }
  write_head(index, head.data());
  CHECK(std::equal(head.begin(), head.end(), frame));
}

// Any part of it is truncated, or, where the field that says so is cut off, corrupt.
void test_parts(const FrameIndex& index, const uint8_t* frame) {
  const size_t size = static_cast<size_t>(index.header.head_size());
  const Bytes head(frame, frame + size);
  CHECK(read_index(head.data(), size).frame_size() == index.frame_size());
  for (const size_t part : {size - 1, size / 2, kHeaderSize, kHeaderSize - 1}) {
    if (part >= size) continue;
    const Bytes bytes(frame, frame + part);
    CHECK(error_of([&] { read_index(bytes.data(), part); }).starts_with("truncated: "));
  }
}

void test_zstd(const uint8_t* payload, size_t size) {
  const ZstdFrame frame = zstd_frame(payload, size);
  CHECK(frame.end == SIZE_MAX || (frame.end != 0 && frame.end <= size));
  if (frame.end == size) CHECK(zstd_content_size(payload, size) == frame.content_size);
}

void test_block(const FrameIndex& index, const uint8_t* frame, size_t b) {
  const Bytes block(frame + index.offsets[b], frame + index.offsets[b + 1]);
  PlaneView planes[kMaxItemSize];
  const size_t width = index.header.width(), n = index.items(b, b + 1);
  if (!error_of([&] { parse_block(width, n, block.data(), block.size(), planes); }).empty()) return;
  const uint8_t* end = block.data() + block.size();
  for (size_t p = 0; p < width; ++p) {  // the last plane comes first
    CHECK(planes[p].payload + planes[p].size == end);
    end = planes[p].payload;
    if (planes[p].mode == Mode::zstd) test_zstd(planes[p].payload, planes[p].size);
  }
  CHECK(end > block.data());
}

// The same for directories, and the heads that they lead to.
void test_directory(const GrowingIndex& index, const uint8_t* data, size_t size) {
  const size_t all = static_cast<size_t>(index.directory_size());
  Bytes directory(all);
  write_growing(index, directory.data());
  CHECK(std::equal(directory.begin(), directory.end(), data));
  CHECK(growing_directory_size(data, kGrowingHeader) == all);
  for (const size_t part : {all - 1, all / 2, kGrowingHeader, kGrowingHeader - 1}) {
    if (part >= all) continue;
    const Bytes bytes(data, data + part);
    CHECK(error_of([&] { read_growing(bytes.data(), part); }).starts_with("truncated: "));
  }
  for (size_t v = 0; v < index.entries.size() && index.entries[v].end <= size; ++v) {
    const Bytes frame(data + index.begin(v), data + index.entries[v].end);
    const std::string error = error_of([&] {
      const uint64_t head = growing_head_size(index, v, frame.data(), frame.size());
      CHECK(head <= frame.size());
      read_growing_frame(index, v, frame.data(), static_cast<size_t>(head));
    });
    CHECK(error.empty() || error.find("version " + std::to_string(v)) != std::string::npos);
  }
}

}  // namespace
}  // namespace bf16codecs::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace bf16codecs;
  fuzz::use(*fuzz::instruction_sets().back());
  GrowingIndex growing;
  if (is_growing(data, size) &&
      fuzz::error_of([&] { growing = read_growing(data, size); }).empty()) {
    fuzz::test_directory(growing, data, size);
  }
  FrameIndex index;
  if (!fuzz::error_of([&] { index = read_index(data, size); }).empty()) return 0;
  fuzz::test_head(index, data);
  fuzz::test_parts(index, data);
  if (!fuzz::is_whole_frame(data, size, index)) return 0;
  for (size_t b = 0; b < index.blocks(); ++b) fuzz::test_block(index, data, b);
  return 0;
}
