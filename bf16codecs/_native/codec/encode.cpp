#include <algorithm>
#include <atomic>
#include <memory>
#include <vector>

#include "block.h"
#include "codec.h"
#include "codec/base.h"
#include "codec/frame_model.h"
#include "codec/placement.h"
#include "format/checksum.h"
#include "grid/keys.h"
#include "threads/pool.h"

namespace bf16codecs {
namespace {

// What is encoded: items, in how many versions, and what these are coded against.
struct Plan {
  const uint8_t* raw;
  size_t size;
  const uint8_t* base = nullptr;  // outside of the frame
  BaseDigest base_digest;
  std::vector<uint16_t> parents;   // of versions; none in a frame without differences
  std::vector<FrameModel> models;  // of each version

  bool has_differences() const { return !parents.empty(); }
};

Header make_header(const EncodeOptions& options, const Plan& plan) {
  Header header;
  header.codec = options.codec;
  header.layout = options.layout;
  header.block_log2 = options.block_log2;
  header.has_checksums = options.has_checksums;
  header.raw_size = plan.size;
  header.has_differences = plan.has_differences();
  header.versions = plan.parents.size() > 1 ? static_cast<uint16_t>(plan.parents.size()) : 1;
  header.base_digest = plan.base_digest.digest;
  const bool has_model = std::any_of(plan.models.begin(), plan.models.end(),
                                     [](const FrameModel& model) { return model.exists(); });
  header.has_model = has_model || header.versions > 1;
  if (plan.has_differences() || (has_model && plan.models[0].tiles))
    header.version = kFormatVersion;
  return header;
}

// The frame's model, as it is written.
std::vector<uint8_t> model_bytes(const Header& header, const Plan& plan) {
  if (!header.has_model) return {};
  if (!header.has_differences) return plan.models[0].bytes;
  std::vector<Version> versions(plan.models.size());
  for (size_t v = 0; v < versions.size(); ++v) {
    versions[v] = {plan.parents[v], plan.models[v].kind(), plan.models[v].bytes};
  }
  return write_versions(versions);
}

class FrameEncoder {
 public:
  FrameEncoder(const Plan& plan, const EncodeOptions& options, FrameIndex& index, uint8_t* frame)
      : plan_(plan),
        options_(options),
        index_(index),
        frame_(frame),
        placement_(index.offsets),
        saved_(std::make_unique<std::atomic<uint64_t>[]>(plan.models.size())) {}

  void encode(size_t b, Workspace& workspace) {
    try {
      encode_or_throw(b, workspace);
    } catch (...) {
      placement_.fail();
      throw;
    }
  }

  // Bytes that a version's model saves: over coding each plane alone, or storing what differs.
  uint64_t saved(size_t version) const { return saved_[version]; }

 private:
  void encode_or_throw(size_t b, Workspace& workspace) {
    const Header& header = index_.header;
    const size_t width = header.width(), n = index_.items(b, b + 1);
    const size_t version = b / static_cast<size_t>(header.version_blocks());
    const size_t before = version * static_cast<size_t>(header.version_items());
    const size_t first = static_cast<size_t>(header.first_item(b)) - before;
    const uint8_t* const items = plan_.raw + (before + first) * width;

    const uint64_t known = placement_.place_if_known(b);
    uint8_t* const out =
        known != 0 ? frame_ + known : workspace.block.at_least(block_bound(width, n));
    Checksum sum;
    BlockContext context = plan_.models[version].context(workspace, first);
    context.saved = &saved_[version];
    if (plan_.base != nullptr) {
      context.base = plan_.base + first * width;
    } else if (plan_.has_differences() && plan_.parents[version] != kNoParent) {
      const size_t parent = plan_.parents[version] * static_cast<size_t>(header.version_items());
      context.base = plan_.raw + (parent + first) * width;
    }
    const size_t size =
        encode_block(options_, context, items, n, out, header.has_checksums ? &sum : nullptr);
    if (header.has_checksums) index_.checksums[b] = sum.value();
    const uint64_t place = placement_.settle(b, size);
    if (known == 0 && place != 0) std::copy_n(out, size, frame_ + place);
  }

  const Plan& plan_;
  const EncodeOptions& options_;
  FrameIndex& index_;
  uint8_t* frame_;
  Placement placement_;
  std::unique_ptr<std::atomic<uint64_t>[]> saved_;
};

// Removes the models that save less than they take; returns whether there are any.
bool remove_unpaid(const FrameEncoder& encoder, Plan& plan) {
  bool is_any = false;
  for (size_t v = 0; v < plan.models.size(); ++v) {
    FrameModel& model = plan.models[v];
    if (!model.exists() || encoder.saved(v) > kModelSizeField + model.bytes.size()) continue;
    model = {};
    is_any = true;
  }
  return is_any;
}

// Returns 0 where a model saves less than it takes, and removes it.
size_t encode_with(Plan& plan, const EncodeOptions& options, uint8_t* frame) {
  FrameIndex index;
  Header& header = index.header = make_header(options, plan);
  index.model = model_bytes(header, plan);
  header.model_size = static_cast<uint32_t>(index.model.size());
  const size_t blocks = static_cast<size_t>(header.blocks());
  index.base_checksums = plan.base_digest.blocks;
  index.tail.assign(plan.raw + plan.size - header.tail_size(), plan.raw + plan.size);
  index.checksums.resize(header.has_checksums ? blocks : 0);
  index.offsets.reserve(blocks + 1);
  index.offsets.push_back(header.head_size());

  FrameEncoder encoder(plan, options, index, frame);
  parallel_for(blocks, [&](size_t b, Workspace& workspace) { encoder.encode(b, workspace); });
  if (remove_unpaid(encoder, plan)) return 0;
  write_head(index, frame);
  return static_cast<size_t>(index.frame_size());
}

// Of one version without a base, with this model or none.
Plan whole_plan(const uint8_t* raw, size_t size, FrameModel model) {
  Plan plan{raw, size, nullptr, {}, {}, {}};
  plan.models.push_back(std::move(model));
  return plan;
}

// Returns 0 where the frame would be larger than one without a model may be.
size_t encode_if_it_pays(const uint8_t* raw, size_t size, const EncodeOptions& options,
                         FrameModel model, uint8_t* frame) {
  if (model.bytes.size() > model_room(size)) return 0;
  Plan plan = whole_plan(raw, size, std::move(model));
  const size_t with = encode_with(plan, options, frame);
  return with <= frame_bound(size, options.layout.planes(), options.block_log2) ? with : 0;
}

// Encodes once more with the scale model, and keeps that if it is smaller by more than 0.01 bits an
// item. Returns the size of what is kept.
size_t encode_again(const uint8_t* raw, size_t size, const EncodeOptions& options,
                    size_t with_tiles, uint8_t* frame) {
  std::vector<uint8_t> other(static_cast<size_t>(encode_room(size, options)));
  const size_t with_scale =
      encode_if_it_pays(raw, size, options, fit_scale_model(raw, size, options), other.data());
  const size_t worth = size / options.layout.planes() / 800;
  if (with_scale == 0 || (with_tiles != 0 && with_scale + worth >= with_tiles)) return with_tiles;
  std::copy_n(other.data(), with_scale, frame);
  return with_scale;
}

// Whether the scale model may well be worth its time. It has a symbol for zeros: one costs up to 20
// bits less. And it takes 10 bytes less to begin with, up to a third of a bit for each of few
// items.
bool may_gain_by_scale(uint64_t share_of_zeros, uint64_t items) {
  constexpr uint64_t kFewZeros = 2;  // of 4096
  constexpr uint64_t kFewItems = 1 << 10;
  return share_of_zeros > kFewZeros || items <= kFewItems;
}

// Encodes with the model that is best, or returns 0 if none pays.
size_t encode_best(const uint8_t* raw, size_t size, const EncodeOptions& options, uint8_t* frame) {
  FrameModel model = fit_tile_model(raw, size, options);
  const uint64_t zeros = model.tiles->share_of_zeros();
  const size_t with_tiles = encode_if_it_pays(raw, size, options, std::move(model), frame);
  if (!may_gain_by_scale(zeros, size / options.layout.planes())) return with_tiles;
  return encode_again(raw, size, options, with_tiles, frame);
}

size_t encode_until_it_pays(Plan& plan, const EncodeOptions& options, uint8_t* frame) {
  for (;;) {
    if (const size_t size = encode_with(plan, options, frame); size != 0) return size;
  }
}

// Gives a version a model, unless that is larger than can pay.
void add_model(FrameModel model, size_t size, Plan& plan) {
  plan.models.push_back(model.bytes.size() <= model_room(size) ? std::move(model) : FrameModel{});
}

size_t encode_to_base(const uint8_t* raw, size_t size, const EncodeOptions& options,
                      const uint8_t* base, uint8_t* frame) {
  Plan plan{raw, size, base, {}, {0}, {}};
  plan.models.emplace_back();
  plan.base_digest = digest_base(make_header(options, plan), base);
  if (std::equal(raw, raw + size, base)) return encode_until_it_pays(plan, options, frame);
  plan.models.clear();
  add_model(fit_delta_model(base, raw, size, options), size, plan);
  const size_t with_delta = encode_until_it_pays(plan, options, frame);
  // Where differences take this much, the items may well take less alone.
  if (!options.is_best() || 5 * with_delta < 3 * size) return with_delta;
  plan.models.clear();
  add_model(fit_tile_model(raw, size, options), size, plan);
  std::vector<uint8_t> other(static_cast<size_t>(encode_room(size, options)));
  const size_t with_tiles = encode_until_it_pays(plan, options, other.data());
  if (with_tiles >= with_delta) return with_delta;
  std::copy_n(other.data(), with_tiles, frame);
  return with_tiles;
}

// Each version against the one whose number has one bit less set: at most log2 of their number away
// from the first.
size_t encode_versions(const uint8_t* raw, size_t size, const EncodeOptions& options,
                       uint8_t* frame) {
  const size_t version = size / options.steps;
  Plan plan{raw, size, nullptr, {}, {}, {}};
  for (unsigned v = 0; v < options.steps; ++v) {
    const uint8_t* const items = raw + v * version;
    plan.parents.push_back(v == 0 ? kNoParent : static_cast<uint16_t>(v & (v - 1)));
    const bool is_same =
        v != 0 && std::equal(items, items + version, raw + plan.parents[v] * version);
    if (size == 0 || is_same || (v == 0 && !options.is_best())) {
      plan.models.emplace_back();
    } else if (v == 0) {
      add_model(fit_tile_model(items, version, options), version, plan);
    } else {
      add_model(fit_delta_model(raw + plan.parents[v] * version, items, version, options), version,
                plan);
    }
  }
  return encode_until_it_pays(plan, options, frame);
}

// Of fewer bytes, the table of versions takes more than their differences save.
constexpr size_t kLeastStepBytes = 512;

// Encodes without versions, too, and keeps that if it is smaller than `with`.
size_t encode_alone(const uint8_t* raw, size_t size, EncodeOptions options, size_t with,
                    uint8_t* frame) {
  options.steps = 1;
  std::vector<uint8_t> other(static_cast<size_t>(encode_room(size, options)));
  const size_t alone = encode(raw, size, options, nullptr, other.data());
  if (alone >= with) return with;
  std::copy_n(other.data(), alone, frame);
  return alone;
}

// Versions of a few KiB may cost more than they share: each has a model, states and a head.
bool may_be_smaller_alone(const EncodeOptions& options, size_t size, size_t with) {
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
  if (options.has_base) return encode_to_base(raw, size, options, base, frame);
  const bool has_steps =
      options.steps > 1 && (!options.may_drop_steps || size / options.steps >= kLeastStepBytes);
  if (has_steps) {
    const size_t with = encode_versions(raw, size, options, frame);
    const bool is_doubtful = options.may_drop_steps && may_be_smaller_alone(options, size, with);
    return is_doubtful ? encode_alone(raw, size, options, with, frame) : with;
  }
  if (options.is_best() && grid::has_keys(options.layout)) {
    const size_t best = encode_best(raw, size, options, frame);
    if (best != 0) return best;
  }
  Plan plan = whole_plan(raw, size, {});
  return encode_with(plan, options, frame);
}

}  // namespace bf16codecs
