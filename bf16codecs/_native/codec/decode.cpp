// Decoding of frames and of blocks of them, by several threads, and the checks of a base.

#include <algorithm>
#include <string>

#include "block/block.h"
#include "codec.h"
#include "codec/base.h"
#include "codec/frame_model.h"
#include "format/checksum.h"
#include "format/errors.h"
#include "threads/pool.h"
#include "undo_log.h"

namespace bf16codecs {
namespace {

// Decodes one block and checks its checksum.
void decode_one(const FrameIndex& index, size_t b, const BlockContext& context,
                const uint8_t* block, const Zstd* zstd, uint8_t* items) {
  const size_t size = static_cast<size_t>(index.offsets[b + 1] - index.offsets[b]);
  const bool has_checksums = index.header.has_checksums;
  try {
    const uint32_t sum = decode_block(index.header.layout, context, block, size,
                                      index.items(b, b + 1), zstd, has_checksums, items);
    if (has_checksums && sum != index.checksums[b]) {
      throw CorruptDataError("its checksum does not match");
    }
  } catch (const CorruptDataError& error) {
    throw CorruptDataError("block " + std::to_string(b) + " of " + std::to_string(index.blocks()) +
                           ", at byte " + std::to_string(index.offsets[b]) + ": " + error.what());
  }
}

// Decodes versions [begin, end): block i of each version one after the other, because each may need
// an earlier one, and the blocks of a version at once.
void decode_some_versions(const FrameIndex& index, size_t begin, size_t end, const uint8_t* payload,
                          const Zstd* zstd, uint8_t* out) {
  const Header& header = index.header;
  const size_t blocks = static_cast<size_t>(header.version_blocks()), width = header.width();
  const size_t version_size = static_cast<size_t>(header.version_items()) * width;
  std::vector<FrameModel> models;
  for (size_t v = begin; v < end; ++v) {
    models.push_back(read_model(index, v * blocks, (v + 1) * blocks));
  }
  parallel_for(blocks, [&](size_t block, Workspace& workspace) {
    const auto first = static_cast<size_t>(header.first_in_version(block));
    for (size_t v = begin; v < end; ++v) {
      const size_t b = v * blocks + block;
      BlockContext context = models[v - begin].context(workspace, first);
      context.version = header.version;
      const Version& version = index.versions[v];
      if (version.has_base()) context.base = out + version.parent * version_size + first * width;
      decode_one(index, b, context, payload + (index.offsets[b] - index.offsets[0]), zstd,
                 out + v * version_size + first * width);
    }
  });
}

void decode_versions(const FrameIndex& index, const uint8_t* payload, const Zstd* zstd,
                     uint8_t* out) {
  // A limit on memory: a model of a few bytes may have tables of 256 KiB.
  constexpr size_t kModelsAtATime = 32;
  for (size_t v = 0; v < index.header.versions; v += kModelsAtATime) {
    const size_t end = std::min<size_t>(v + kModelsAtATime, index.header.versions);
    decode_some_versions(index, v, end, payload, zstd, out);
  }
}

}  // namespace

void check_base(const FrameIndex& index, const uint8_t* base, size_t size) {
  if (size != index.header.raw_size) {
    throw BaseMismatchError("the base has " + counted(size, "byte") +
                            ", and the frame is of differences to " +
                            std::to_string(index.header.raw_size));
  }
  const BaseDigest found = digest_base(index.header, base);
  if (found.digest != index.header.base_digest || found.blocks != index.base_checksums) {
    throw BaseMismatchError(
        "this is not the base that the frame was encoded with: its digest is another");
  }
}

void check_base_blocks(const FrameIndex& index, const uint8_t* base, size_t first, size_t last) {
  const Header& header = index.header;
  const uint64_t begin = header.first_item(first);
  for (size_t b = first; b < last; ++b) {
    const size_t at = static_cast<size_t>(header.first_item(b) - begin) * header.width();
    if (checksum(base + at, index.items(b, b + 1) * header.width()) != index.base_checksums[b]) {
      throw BaseMismatchError("block " + std::to_string(b) + " of " +
                              std::to_string(index.blocks()) +
                              ": this is not the base that the frame was encoded with");
    }
  }
}

void decode_blocks(const FrameIndex& index, const uint8_t* payload, size_t first, size_t last,
                   const Zstd* zstd, const uint8_t* base, uint8_t* out, UndoLog* log) {
  const Header& header = index.header;
  const FrameModel model = read_model(index, first, last);
  const uint64_t begin = header.first_item(first);
  parallel_for(last - first, [&](size_t i, Workspace& workspace) {
    const size_t b = first + i;
    const size_t at = static_cast<size_t>(header.first_item(b) - begin) * header.width();
    BlockContext context = model.context(workspace, header.first_in_version(b));
    context.version = header.version;
    context.base = base != nullptr ? base + at : nullptr;
    const uint8_t* const block = payload + (index.offsets[b] - index.offsets[first]);
    if (log == nullptr) return decode_one(index, b, context, block, zstd, out + at);
    if (header.needs_base()) check_base_blocks(index, context.base, b, b + 1);
    const size_t size = index.items(b, b + 1) * header.width();
    uint8_t* const aside = workspace.aside.at_least(size);
    decode_one(index, b, context, block, zstd, aside);
    log->replace(out + at, aside, size, workspace.undo);
  });
  if (last == index.blocks()) {
    uint8_t* const end = out + index.items(first, last) * header.width();
    if (log != nullptr) log->add(end, index.tail.size());
    std::copy(index.tail.begin(), index.tail.end(), end);
  }
}

void decode_frame(const FrameIndex& index, const uint8_t* payload, const Zstd* zstd,
                  const uint8_t* base, uint8_t* out) {
  if (index.blocks() == 0) {
    std::copy(index.tail.begin(), index.tail.end(), out);
  } else if (index.header.versions > 1) {
    decode_versions(index, payload, zstd, out);
  } else {
    decode_blocks(index, payload, 0, index.blocks(), zstd, base, out);
  }
}

}  // namespace bf16codecs
