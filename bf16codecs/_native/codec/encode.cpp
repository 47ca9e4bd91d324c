// Encoding of a frame. Where several ways may be the smallest, each is a Plan, and SmallestFrame
// encodes one after the other and keeps the smallest frame. The blocks of a plan are encoded by
// several threads: straight into the frame where their offsets are known in time, otherwise
// to memory of the thread, and copied.

#include <algorithm>
#include <atomic>
#include <memory>
#include <optional>
#include <vector>

#include "block/block.h"
#include "codec.h"
#include "codec/base.h"
#include "codec/block_offsets.h"
#include "codec/frame_model.h"
#include "copy.h"
#include "format/checksum.h"
#include "grid/keys.h"
#include "quantized/find.h"
#include "threads/pool.h"

namespace bf16codecs {
namespace {

// One way to encode the items: as versions with their parents, or whole, and with which models.
struct Plan {
  const EncodeOptions& options;
  const uint8_t* raw;
  size_t size;
  const uint8_t* base = nullptr;  // outside of the frame
  BaseDigest base_digest = {};
  std::vector<uint16_t> parents = {};   // by version; empty in a frame without differences
  std::vector<FrameModel> models = {};  // by version
  std::optional<quantized::Found> grid = {};

  bool has_differences() const { return !parents.empty(); }
  bool has_models() const {
    return std::any_of(models.begin(), models.end(),
                       [](const FrameModel& model) { return model.exists(); });
  }
  // Gives the next version, of `version` bytes, a model, unless the model is too large to pay.
  void add_model(FrameModel model, size_t version) {
    models.push_back(model.bytes.size() <= model_room(version) ? std::move(model) : FrameModel{});
  }
};

Header make_header(const Plan& plan) {
  const EncodeOptions& options = plan.options;
  Header header;
  header.codec = options.codec;
  header.layout = options.layout;
  header.block_log2 = options.block_log2;
  header.has_checksums = options.has_checksums;
  header.raw_size = plan.size;
  header.has_differences = plan.has_differences();
  header.versions = plan.parents.size() > 1 ? static_cast<uint16_t>(plan.parents.size()) : 1;
  header.base_digest = plan.base_digest.digest;
  const bool has_model = plan.has_models();
  header.has_model = has_model || header.versions > 1;
  if (plan.has_differences() || (has_model && plan.models[0].tiles))
    header.version = kFormatVersion;
  return header;
}

// Writes the frame's model.
std::vector<uint8_t> model_bytes(const Header& header, const Plan& plan) {
  if (!header.has_model) return {};
  if (!header.has_differences) return plan.models[0].bytes;
  std::vector<Version> versions(plan.models.size());
  for (size_t v = 0; v < versions.size(); ++v) {
    versions[v] = {plan.parents[v], plan.models[v].kind(), plan.models[v].bytes};
  }
  return write_versions(versions);
}

// Whether the number of a mode is one that version 2 added.
bool is_new(uint8_t mode) {
  return mode > static_cast<uint8_t>(Mode::joined);
}

class FrameEncoder {
 public:
  FrameEncoder(const Plan& plan, FrameIndex& index, uint8_t* frame)
      : plan_(plan),
        index_(index),
        frame_(frame),
        block_offsets_(index.offsets),
        saved_(std::make_unique<std::atomic<uint64_t>[]>(plan.models.size())) {}

  void encode(size_t b, Workspace& workspace) {
    try {
      encode_or_throw(b, workspace);
    } catch (...) {
      block_offsets_.fail();
      throw;
    }
  }

  // The bytes that a version's model saves, compared with coding each plane alone, or with storing
  // blocks that differ from their base.
  uint64_t saved(size_t version) const { return saved_[version]; }
  // Whether a block has a mode of version 2.
  bool has_new_mode() const { return has_new_mode_; }

 private:
  void encode_or_throw(size_t b, Workspace& workspace) {
    const Header& header = index_.header;
    const size_t width = header.width(), n = index_.items(b, b + 1);
    const size_t version = header.version_of(b);
    const auto first = static_cast<size_t>(header.first_in_version(b));
    const uint8_t* const items = plan_.raw + static_cast<size_t>(header.first_item(b)) * width;

    const uint64_t known = block_offsets_.if_known(b);
    uint8_t* const out =
        known != 0 ? frame_ + known : workspace.block.at_least(block_bound(width, n));
    Checksum sum;
    BlockContext context = plan_.models[version].context(workspace, first);
    context.saved = &saved_[version];
    context.grid = plan_.grid ? &*plan_.grid : nullptr;
    // The scale model is one of version 1.
    context.version = context.scale != nullptr ? kFirstVersion : kFormatVersion;
    if (plan_.base != nullptr) {
      context.base = plan_.base + first * width;
    } else if (plan_.has_differences() && plan_.parents[version] != kNoParent) {
      const size_t parent = plan_.parents[version] * static_cast<size_t>(header.version_items());
      context.base = plan_.raw + (parent + first) * width;
    }
    const size_t size =
        encode_block(plan_.options, context, items, n, out, header.has_checksums ? &sum : nullptr);
    if (std::any_of(out, out + width, is_new)) has_new_mode_ = true;
    if (header.has_checksums) index_.checksums[b] = sum.value();
    const uint64_t offset = block_offsets_.settle(b, size);
    if (known == 0 && offset != 0) copy_down(out, size, frame_ + offset);
  }

  const Plan& plan_;
  FrameIndex& index_;
  uint8_t* frame_;
  BlockOffsets block_offsets_;
  std::unique_ptr<std::atomic<uint64_t>[]> saved_;
  std::atomic<bool> has_new_mode_ = false;
};

// Removes the models that save less than they take, and the model of a frame that is larger than
// frame_bound(); returns whether it removed any.
bool remove_unpaid(const FrameEncoder& encoder, size_t frame_size, Plan& plan) {
  const EncodeOptions& options = plan.options;
  const bool is_too_large =
      !plan.has_differences() &&
      frame_size > frame_bound(plan.size, options.layout.planes(), options.block_log2);
  bool is_any = false;
  for (size_t v = 0; v < plan.models.size(); ++v) {
    FrameModel& model = plan.models[v];
    if (!model.exists()) continue;
    if (!is_too_large && encoder.saved(v) > kModelSizeField + model.bytes.size()) continue;
    model = {};
    is_any = true;
  }
  return is_any;
}

// Encodes a plan and returns the frame's size. If some models do not pay, removes them from the
// plan and returns 0.
size_t encode_plan(Plan& plan, uint8_t* frame) {
  FrameIndex index;
  Header& header = index.header = make_header(plan);
  index.model = model_bytes(header, plan);
  header.model_size = static_cast<uint32_t>(index.model.size());
  const size_t blocks = static_cast<size_t>(header.blocks());
  index.base_checksums = plan.base_digest.blocks;
  index.tail.assign(plan.raw + plan.size - header.tail_size(), plan.raw + plan.size);
  index.checksums.resize(header.has_checksums ? blocks : 0);
  index.offsets.reserve(blocks + 1);
  index.offsets.push_back(header.head_size());

  FrameEncoder encoder(plan, index, frame);
  parallel_for(blocks, [&](size_t b, Workspace& workspace) { encoder.encode(b, workspace); });
  const auto size = static_cast<size_t>(index.frame_size());
  if (remove_unpaid(encoder, size, plan)) return 0;
  if (encoder.has_new_mode()) header.version = kFormatVersion;
  write_head(index, frame);
  return size;
}

// Encodes plans, one after the other, and keeps the smallest frame.
class SmallestFrame {
 public:
  SmallestFrame(uint8_t* frame, uint64_t room) : frame_(frame), room_(room) {}

  size_t size() const { return size_; }

  // Encodes one more plan, as `encode_plan` does, and keeps its frame if that is smaller than the
  // one so far and than `limit`.
  size_t add(Plan& plan, size_t limit = SIZE_MAX) {
    if (size_ == 0) return size_ = encode_plan(plan, frame_);
    other_.resize(static_cast<size_t>(room_));
    const size_t size = encode_plan(plan, other_.data());
    if (size == 0 || size >= std::min(size_, limit)) return size;
    copy_down(other_.data(), size, frame_);
    return size_ = size;
  }

  // Encodes one more plan with those of its models that pay.
  void add_paying(Plan& plan) {
    while (add(plan) == 0) continue;
  }

 private:
  uint8_t* frame_;
  uint64_t room_;
  size_t size_ = 0;
  std::vector<uint8_t> other_;
};

// Whether the scale model is likely to be worth its time. It has a symbol for zeros, each of which
// may cost 20 bits less. And it is 10 bytes smaller to begin with, up to a third of a bit an item
// where there are few.
bool may_gain_by_scale(uint64_t share_of_zeros, uint64_t items) {
  constexpr uint64_t kFewZeros = 2;  // of 4096
  constexpr uint64_t kFewItems = 1 << 10;
  return share_of_zeros > kFewZeros || items <= kFewItems;
}

// Adds a frame with the tile model, and one with the scale model if that is smaller by more than
// 0.01 bits per item: it decodes more slowly. Returns whether a frame without a model may be
// smaller: if neither pays, and where there are so many zeros that its planes may be sparse.
bool add_modelled(Plan& plan, SmallestFrame& smallest) {
  FrameModel tiles = fit_tile_model(plan.raw, plan.size, plan.options);
  const uint64_t zeros = tiles.tiles->share_of_zeros();
  plan.add_model(std::move(tiles), plan.size);
  const size_t with_tiles = plan.has_models() ? smallest.add(plan) : 0;
  const size_t items = plan.size / plan.options.layout.planes();
  if (!may_gain_by_scale(zeros, items)) return with_tiles == 0;

  const size_t worth = items / 800;
  const size_t limit = with_tiles != 0 ? with_tiles - std::min(worth, with_tiles) : SIZE_MAX;
  plan.models.clear();
  plan.grid.reset();  // it needs version 2, and the scale model version 1
  plan.add_model(fit_scale_model(plan.raw, plan.size, plan.options), plan.size);
  const size_t with_scale = plan.has_models() ? smallest.add(plan, limit) : 0;
  constexpr uint64_t kManyZeros = 256;  // of 4096
  return (with_tiles == 0 && with_scale == 0) || zeros > kManyZeros;
}

// Split and Zstandard frames are for their planes.
bool may_have_grids(const EncodeOptions& options) {
  return options.may_use_grids &&
         (options.codec == Codec::arithmetic || options.codec == Codec::huffman);
}

// Looks for a grid in the first `size` bytes.
void find_grid(Plan& plan, size_t size) {
  const EncodeOptions& options = plan.options;
  if (!may_have_grids(options)) return;
  plan.grid =
      quantized::find(options.layout, plan.raw, size / options.layout.planes(), options.row);
}

// Adds frames of one version without a base.
void add_whole(Plan plan, SmallestFrame& smallest) {
  const EncodeOptions& options = plan.options;
  find_grid(plan, plan.size);
  const bool may_have_model = options.is_best() && grid::has_keys(options.layout);
  if (!plan.grid && may_have_model && !add_modelled(plan, smallest)) return;
  plan.models.clear();
  plan.models.emplace_back();
  smallest.add(plan);
  if (plan.grid && may_have_model) {
    plan.models.clear();
    add_modelled(plan, smallest);
  }
}

// Adds frames of one version with a base.
void add_to_base(Plan plan, SmallestFrame& smallest) {
  const EncodeOptions& options = plan.options;
  find_grid(plan, plan.size);
  plan.parents = {0};
  plan.base_digest = digest_base(make_header(plan), plan.base);
  if (std::equal(plan.raw, plan.raw + plan.size, plan.base)) {
    plan.models.emplace_back();
    smallest.add(plan);
    return;
  }
  plan.add_model(fit_delta_model(plan.base, plan.raw, plan.size, options), plan.size);
  smallest.add_paying(plan);
  // Where differences take 60 % of the items or more, the items may take less without the base.
  if (!options.is_best() || 5 * smallest.size() < 3 * plan.size) return;
  plan.models.clear();
  plan.add_model(fit_tile_model(plan.raw, plan.size, options), plan.size);
  smallest.add_paying(plan);
}

// Adds a frame of versions, each against the one whose number has one bit less set: at most log2 of
// their number away from the first.
void add_versions(Plan plan, SmallestFrame& smallest) {
  const EncodeOptions& options = plan.options;
  const size_t size = plan.size / options.steps;
  find_grid(plan, size);
  for (unsigned v = 0; v < options.steps; ++v) {
    const uint8_t* const version = plan.raw + v * size;
    plan.parents.push_back(v == 0 ? kNoParent : static_cast<uint16_t>(v & (v - 1)));
    const uint8_t* const parent = v == 0 ? nullptr : plan.raw + plan.parents[v] * size;
    const bool is_same = v != 0 && std::equal(version, version + size, parent);
    if (size == 0 || is_same || (v == 0 && !options.is_best())) {
      plan.models.emplace_back();
    } else if (v == 0) {
      plan.add_model(fit_tile_model(version, size, options), size);
    } else {
      plan.add_model(fit_delta_model(parent, version, size, options), size);
    }
  }
  smallest.add_paying(plan);
}

// For steps of fewer bytes, the table of versions takes more than the differences save.
constexpr size_t kLeastStepBytes = 512;

// Whether one version may take less: each of several small ones has a model, states and a head.
bool may_be_smaller_whole(const EncodeOptions& options, size_t size, size_t with) {
  constexpr size_t kFew = size_t{1} << 15;
  return size / options.steps < kFew && 2 * with > size;
}

}  // namespace

uint64_t encode_room(uint64_t raw_size, const EncodeOptions& options) {
  const size_t width = options.layout.planes();
  const uint64_t plain = frame_bound(raw_size, width, options.block_log2);
  if (!options.has_base && options.steps == 1) {
    return plain + (options.is_best() ? kModelSizeField + model_room(raw_size) : 0);
  }
  const auto versions = static_cast<uint16_t>(options.steps);
  return frame_bound(raw_size, width, options.block_log2, versions) + kModelSizeField + 1 +
         versions * model_room(raw_size / versions);
}

size_t encode(const uint8_t* raw, size_t size, const EncodeOptions& options, const uint8_t* base,
              uint8_t* frame) {
  SmallestFrame smallest(frame, encode_room(size, options));
  EncodeOptions whole = options;
  whole.steps = 1;
  const bool has_steps =
      options.steps > 1 && (!options.may_drop_steps || size / options.steps >= kLeastStepBytes);
  if (options.has_base) {
    add_to_base({options, raw, size, base}, smallest);
  } else if (!has_steps) {
    add_whole({whole, raw, size}, smallest);
  } else {
    add_versions({options, raw, size}, smallest);
    if (options.may_drop_steps && may_be_smaller_whole(options, size, smallest.size()))
      add_whole({whole, raw, size}, smallest);
  }
  return smallest.size();
}

}  // namespace bf16codecs
