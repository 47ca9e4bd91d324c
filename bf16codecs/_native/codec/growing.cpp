#include "codec/growing.h"

#include "codec.h"
#include "format/errors.h"

namespace bf16codecs {

std::vector<FrameIndex> read_growing_frames(const GrowingIndex& index, const uint8_t* bytes,
                                            size_t size) {
  if (size < index.end()) {
    throw TruncatedDataError("the growing frame has " + counted(size, "byte") + " of " +
                             std::to_string(index.end()));
  }
  std::vector<FrameIndex> frames;
  for (size_t v = 0; v < index.entries.size(); ++v) {
    const size_t frame_size = static_cast<size_t>(index.frame_size(v));
    frames.push_back(read_growing_frame(index, v, bytes + index.begin(v), frame_size));
  }
  return frames;
}

void decode_growing(const GrowingIndex& index, const std::vector<FrameIndex>& frames,
                    const uint8_t* bytes, const Zstd* zstd, uint8_t* out) {
  const size_t size = static_cast<size_t>(index.version_size);
  for (size_t v = 0; v < frames.size(); ++v) {
    const GrowingEntry& entry = index.entries[v];
    const uint8_t* const base = entry.has_parent() ? out + size * entry.parent : nullptr;
    const uint8_t* const payload = bytes + index.begin(v) + frames[v].offsets[0];
    in_version(v, [&] {
      if (base != nullptr) check_base(frames[v], base, size);
      decode_frame(frames[v], payload, zstd, base, out + size * v);
    });
  }
}

}  // namespace bf16codecs
