// Whole frames on the kernels for CUDA, in lockstep (cuda/lockstep.h): each block has the bytes, or
// the verdict, that the processor's decoder gives; in place, too, where they are differences to a
// base.

#include "lockstep/device.h"

#include "core.h"

namespace bf16codecs::fuzz {
namespace {

using cuda::Verdict;

// What the processor makes of each block: where it is damaged, or a block that it comes from, its
// bytes are undefined.
struct Expected {
  Bytes bytes;
  std::vector<bool> is_sound, has_sound_base;
};

Expected expected(const FrameIndex& index, const uint8_t* frame, const Bytes& base) {
  const Header& header = index.header;
  const auto per_version = static_cast<size_t>(header.version_blocks());
  const size_t version_size = static_cast<size_t>(header.version_items()) * header.width();
  Expected result;
  result.bytes.resize(static_cast<size_t>(header.raw_size));
  for (size_t b = 0; b < index.blocks(); ++b) {
    const size_t place = b % per_version, version = b / per_version;
    const size_t at = place * header.block_items() * header.width();
    const uint8_t* of_block = header.needs_base() ? base.data() + at : nullptr;
    bool has_sound_base = true;
    if (header.versions > 1 && index.versions[version].has_base()) {
      const size_t parent = index.versions[version].parent;
      has_sound_base = result.is_sound[parent * per_version + place];
      of_block = result.bytes.data() + parent * version_size + at;
    }
    const std::string error = error_of([&] {
      decode_blocks(index, frame + index.offsets[b], b, b + 1, &zstd(), of_block,
                    result.bytes.data() + version * version_size + at);
    });
    result.is_sound.push_back(has_sound_base && error.empty());
    result.has_sound_base.push_back(has_sound_base);
  }
  return result;
}

void compare(const FrameIndex& index, const Expected& expected,
             const std::vector<Verdict>& verdicts, const Bytes& bytes) {
  const size_t width = index.header.width();
  CHECK(verdicts.size() == expected.is_sound.size());
  for (size_t b = 0; b < verdicts.size(); ++b) {
    if (!expected.has_sound_base[b]) continue;
    CHECK(verdicts[b] == (expected.is_sound[b] ? Verdict::done : Verdict::corrupt));
    if (!expected.is_sound[b]) continue;
    const size_t at = static_cast<size_t>(index.header.first_item(b)) * width;
    const size_t size = index.items(b, b + 1) * width;
    CHECK(std::equal(bytes.data() + at, bytes.data() + at + size, expected.bytes.data() + at));
  }
}

void test_once(const FrameIndex& index, const uint8_t* frame, const Bytes& base) {
  const Expected of_processor = expected(index, frame, base);
  for (const bool backwards : {false, true}) {
    test::Device device{backwards};
    device.checks_base = false;  // no input has its base
    Bytes out(static_cast<size_t>(index.header.raw_size));
    const auto verdicts = device.decode(index, frame, base.data(), out.data(), &zstd());
    compare(index, of_processor, verdicts, out);
    if (!index.header.needs_base()) continue;
    std::copy(base.begin(), base.end(), out.begin());
    const auto in_place = device.decode(index, frame, out.data(), out.data(), &zstd());
    compare(index, of_processor, in_place, out);
  }
}

void test(FrameIndex& index, const uint8_t* frame) {
  const Bytes base = base_of(index);
  // First without the blocks' checksums, or the first damaged one would be the last to be seen.
  const bool has_checksums = index.header.has_checksums;
  index.header.has_checksums = false;
  // A model is read before any block.
  if (!error_of([&] { test_once(index, frame, base); }).empty()) return;
  index.header.has_checksums = has_checksums;
  if (has_checksums) test_once(index, frame, base);
}

}  // namespace
}  // namespace bf16codecs::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace bf16codecs;
  FrameIndex index;
  if (fuzz::is_frame_to_decode(data, size, index)) fuzz::test(index, data);
  return 0;
}
