#include "codec.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <optional>
#include <string>

#include "block.h"
#include "format/checksum.h"
#include "format/errors.h"
#include "grid/keys.h"
#include "threads/pool.h"

namespace bf16codecs {
namespace {

// The places of blocks that several threads encode. A block's place is known once all blocks before
// it have been encoded. Tasks begin in order, so the first block without a place is always being
// encoded by a thread that waits for no other.
class Placement {
 public:
  explicit Placement(FrameIndex& index) : offsets_(index.offsets) {}

  // Where block b begins, if that is known already, or else 0.
  uint64_t place_if_known(size_t b) {
    const std::lock_guard lock(mutex_);
    return b < offsets_.size() ? offsets_[b] : 0;
  }

  // Waits until the place of block b is known, and settles that of the next.
  uint64_t settle(size_t b, size_t size) {
    std::unique_lock lock(mutex_);
    placed_.wait(lock, [&] { return failed_ || b < offsets_.size(); });
    if (failed_) return 0;
    offsets_.push_back(offsets_[b] + size);
    placed_.notify_all();
    return offsets_[b];
  }

  void fail() {
    const std::lock_guard lock(mutex_);
    failed_ = true;
    placed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable placed_;
  std::vector<uint64_t>& offsets_;
  bool failed_ = false;
};

// What all blocks of a frame share, and how it stands in the frame.
struct FrameModel {
  std::optional<scale::Model> scale;  // of version 1
  std::optional<tiles::Model> tiles;  // of version 2
  std::vector<uint8_t> bytes;

  bool exists() const { return scale || tiles; }
  BlockContext context(Workspace& workspace, uint64_t first) const {
    return {workspace, first, scale ? &*scale : nullptr, tiles ? &*tiles : nullptr, nullptr};
  }
};

class FrameEncoder {
 public:
  FrameEncoder(const uint8_t* raw, const EncodeOptions& options, const FrameModel& model,
               FrameIndex& index, uint8_t* frame)
      : raw_(raw), options_(options), model_(model), index_(index), frame_(frame),
        placement_(index) {}

  void encode(size_t b, Workspace& workspace) {
    try {
      encode_or_throw(b, workspace);
    } catch (...) {
      placement_.fail();
      throw;
    }
  }

  // Bytes that the model saves over coding each plane alone.
  uint64_t saved() const { return saved_; }

 private:
  void encode_or_throw(size_t b, Workspace& workspace) {
    const Header& header = index_.header;
    const size_t first = b * header.block_items();
    const size_t n =
        static_cast<size_t>(std::min<uint64_t>(header.block_items(), header.items() - first));
    const uint8_t* items = raw_ + first * header.width();

    const uint64_t known = placement_.place_if_known(b);
    uint8_t* const out = known != 0 ? frame_ + known
                                    : workspace.block.at_least(block_bound(header.width(), n));
    Checksum sum;
    BlockContext context = model_.context(workspace, first);
    context.saved = &saved_;
    const size_t size =
        encode_block(options_, context, items, n, out, header.has_checksums ? &sum : nullptr);
    if (header.has_checksums) index_.checksums[b] = sum.value();
    const uint64_t place = placement_.settle(b, size);
    if (known == 0 && place != 0) std::copy_n(out, size, frame_ + place);
  }

  const uint8_t* raw_;
  const EncodeOptions& options_;
  const FrameModel& model_;
  FrameIndex& index_;
  uint8_t* frame_;
  Placement placement_;
  std::atomic<uint64_t> saved_{0};
};

// Returns 0 where the model saves less than it takes.
size_t encode_with(const uint8_t* raw, size_t size, const EncodeOptions& options,
                   const FrameModel& model, uint8_t* frame) {
  FrameIndex index;
  Header& header = index.header;
  header.codec = options.codec;
  header.layout = options.layout;
  header.block_log2 = options.block_log2;
  header.has_checksums = options.has_checksums;
  if (model.tiles) header.version = kFormatVersion;
  header.has_model = model.exists();
  header.model_size = static_cast<uint32_t>(model.bytes.size());
  header.raw_size = size;
  const size_t blocks = static_cast<size_t>(header.blocks());
  index.model = model.bytes;
  index.tail.assign(raw + size - header.tail_size(), raw + size);
  index.checksums.resize(header.has_checksums ? blocks : 0);
  index.offsets.reserve(blocks + 1);
  index.offsets.push_back(header.head_size());

  FrameEncoder encoder(raw, options, model, index, frame);
  parallel_for(blocks, [&](size_t b, Workspace& workspace) { encoder.encode(b, workspace); });
  if (header.has_model && encoder.saved() <= kModelSizeField + header.model_size) return 0;
  write_head(index, frame);
  return static_cast<size_t>(index.frame_size());
}

// A larger model cannot pay: it takes a fourth of a bit an item, and the least ones some bytes.
uint64_t model_room(uint64_t raw_size) { return 64 + raw_size / 64; }

FrameModel scale_model(const uint8_t* raw, size_t size, const EncodeOptions& options) {
  FrameModel model;
  model.scale = scale::Model::fit(options.layout, raw, size / options.layout.planes(), options.row);
  model.bytes = model.scale->write();
  return model;
}

FrameModel tile_model(const uint8_t* raw, size_t size, const EncodeOptions& options) {
  FrameModel model;
  model.tiles = tiles::Model::fit(options.layout, raw, size / options.layout.planes(), options.row);
  model.bytes = model.tiles->write();
  return model;
}

// Returns 0 where the frame would be larger than one without a model may be.
size_t encode_if_it_pays(const uint8_t* raw, size_t size, const EncodeOptions& options,
                         const FrameModel& model, uint8_t* frame) {
  if (model.bytes.size() > model_room(size)) return 0;
  const size_t with = encode_with(raw, size, options, model, frame);
  return with <= frame_bound(size, options.layout.planes(), options.block_log2) ? with : 0;
}

// Encodes once more with the scale model, and keeps that if it is smaller by more than 0.01 bits an
// item. Returns the size of what is kept.
size_t encode_again(const uint8_t* raw, size_t size, const EncodeOptions& options,
                    size_t with_tiles, uint8_t* frame) {
  std::vector<uint8_t> other(encode_room(size, options));
  const FrameModel model = scale_model(raw, size, options);
  const size_t with_scale = encode_if_it_pays(raw, size, options, model, other.data());
  const size_t worth = size / options.layout.planes() / 800;
  if (with_scale == 0 || (with_tiles != 0 && with_scale + worth >= with_tiles)) return with_tiles;
  std::copy_n(other.data(), with_scale, frame);
  return with_scale;
}

// Whether the scale model may well be worth its time. It has a symbol for zeros: one costs up to 20
// bits less. And it takes 10 bytes less to begin with, up to a third of a bit for each of few items.
bool may_gain_by_scale(const tiles::Model& model, uint64_t items) {
  constexpr uint64_t kFewZeros = 2;  // of 4096
  constexpr uint64_t kFewItems = 1 << 10;
  return model.share_of_zeros() > kFewZeros || items <= kFewItems;
}

// Encodes with the model that is best, or returns 0 if none pays.
size_t encode_best(const uint8_t* raw, size_t size, const EncodeOptions& options, uint8_t* frame) {
  const FrameModel model = tile_model(raw, size, options);
  const size_t with_tiles = encode_if_it_pays(raw, size, options, model, frame);
  if (!may_gain_by_scale(*model.tiles, size / options.layout.planes())) return with_tiles;
  return encode_again(raw, size, options, with_tiles, frame);
}

// Reads what decoding blocks [first, last) needs of the frame's model.
FrameModel read_model(const FrameIndex& index, size_t first, size_t last) {
  FrameModel model;
  const Header& header = index.header;
  if (!header.has_model) return model;
  const uint64_t begin = first * header.block_items(), end = begin + index.items(first, last);
  const uint8_t* const bytes = index.model.data();
  const size_t size = index.model.size();
  if (header.version == kFirstVersion) {
    model.scale = scale::Model::read(header.layout, bytes, size, header.items(), begin, end);
  } else {
    model.tiles = tiles::Model::read(header.layout, bytes, size, header.items(), begin, end);
  }
  return model;
}

}  // namespace

uint64_t encode_room(uint64_t raw_size, const EncodeOptions& options) {
  return frame_bound(raw_size, options.layout.planes(), options.block_log2) +
         (options.is_best() ? kModelSizeField + model_room(raw_size) : 0);
}

size_t encode(const uint8_t* raw, size_t size, const EncodeOptions& options, uint8_t* frame) {
  if (options.is_best() && grid::has_keys(options.layout)) {
    const size_t best = encode_best(raw, size, options, frame);
    if (best != 0) return best;
  }
  return encode_with(raw, size, options, {}, frame);
}

void decode_blocks(const FrameIndex& index, const uint8_t* payload, size_t first, size_t last,
                   const Zstd* zstd, uint8_t* out) {
  const Header& header = index.header;
  const FrameModel model = read_model(index, first, last);
  parallel_for(last - first, [&](size_t i, Workspace& workspace) {
    const size_t b = first + i;
    const uint8_t* block = payload + (index.offsets[b] - index.offsets[first]);
    const size_t size = static_cast<size_t>(index.offsets[b + 1] - index.offsets[b]);
    uint8_t* items = out + i * header.block_items() * header.width();
    try {
      const BlockContext context = model.context(workspace, b * header.block_items());
      const uint32_t sum = decode_block(header.layout, context, block, size,
                                        index.items(b, b + 1), zstd, header.has_checksums, items);
      if (header.has_checksums && sum != index.checksums[b]) {
        throw CorruptDataError("its checksum does not match");
      }
    } catch (const CorruptDataError& error) {
      throw CorruptDataError("block " + std::to_string(b) + " of " +
                             std::to_string(index.blocks()) + ", at byte " +
                             std::to_string(index.offsets[b]) + ": " + error.what());
    }
  });
  if (last == index.blocks()) {
    std::copy(index.tail.begin(), index.tail.end(),
              out + index.items(first, last) * header.width());
  }
}

}  // namespace bf16codecs
