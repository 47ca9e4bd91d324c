#include "lockstep/compare.h"

#include <algorithm>

#include "format/errors.h"
#include "lockstep/device.h"

namespace bf16codecs::test {
namespace {

using cuda::Verdict;

// What the processor makes of each block: where it is damaged, or a block that it comes from, its
// bytes are undefined.
struct Expected {
  Bytes bytes;
  std::vector<bool> is_sound, has_sound_base;
};

Expected expected(const FrameIndex& index, const uint8_t* frame, const Bytes& base,
                  const Zstd* zstd) {
  const Header& header = index.header;
  const auto per_version = static_cast<size_t>(header.version_blocks());
  const size_t version_size = static_cast<size_t>(header.version_items()) * header.width();
  Expected result;
  result.bytes.resize(static_cast<size_t>(header.raw_size));
  for (size_t b = 0; b < index.blocks(); ++b) {
    const size_t block = b % per_version, version = b / per_version;
    const size_t at = block * header.block_items() * header.width();
    const uint8_t* of_block = header.needs_base() ? base.data() + at : nullptr;
    bool has_sound_base = true;
    if (header.versions > 1 && index.versions[version].has_base()) {
      const size_t parent = index.versions[version].parent;
      has_sound_base = result.is_sound[parent * per_version + block];
      of_block = result.bytes.data() + parent * version_size + at;
    }
    bool is_sound = true;
    try {
      decode_blocks(index, frame + index.offsets[b], b, b + 1, zstd, of_block,
                    result.bytes.data() + version * version_size + at);
    } catch (const CorruptDataError&) {
      is_sound = false;
    }
    result.is_sound.push_back(has_sound_base && is_sound);
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

}  // namespace

void compare_on_device(const FrameIndex& index, const uint8_t* frame, const Bytes& base,
                       const Zstd* zstd) {
  const Expected of_processor = expected(index, frame, base, zstd);
  for (Device device : {Device{}, Device{.backwards = true}, Device{.joins_blocks = false}}) {
    device.checks_base = false;  // it may be any
    Bytes out(static_cast<size_t>(index.header.raw_size));
    const auto verdicts = device.decode(index, frame, base.data(), out.data(), zstd);
    compare(index, of_processor, verdicts, out);
    if (!index.header.needs_base()) continue;
    std::copy(base.begin(), base.end(), out.begin());
    const auto in_place = device.decode(index, frame, out.data(), out.data(), zstd);
    compare(index, of_processor, in_place, out);
  }
}

}  // namespace bf16codecs::test
