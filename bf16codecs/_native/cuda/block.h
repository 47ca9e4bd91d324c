#pragma once

// Blocks of any kind (docs/format.md, "Block").

#include "cuda/delta.h"
#include "cuda/huffman.h"
#include "cuda/job.h"
#include "cuda/merge.h"
#include "cuda/pairs.h"
#include "cuda/strips.h"
#include "cuda/wide.h"
#include "format/constants.h"

namespace bf16codecs::cuda {

struct BlockMemory {
  Shared<kMaxItemSize> modes;
  Shared<4 * kMaxItemSize> begins, sizes;  // of the planes' payloads in the block
  Shared<4> is_sound;
  Planes planes;
  Shared<kStripBytes> strip;
  BF16CODECS_ONE_OF {
    PairsMemory pairs;
    WideMemory wide;
    HuffmanMemory huffman;
    DeltaMemory delta;
  }
  mode;
};

// Whether the base of a job's block is not the one that was encoded.
BF16CODECS_DEVICE bool has_other_base(const Warp& warp, BlockMemory& memory, const Job& job) {
  if ((job.flags & kJobBaseChecked) == 0) return false;
  const uint64_t size = uint64_t{job.n} * job.width;
  return checksum_of(warp, memory.strip, bytes_at(job.base), size) != job.base_checksum;
}

// Decodes a block with one warp; of a grid, the job of its symbols (cuda/levels.h).
class BlockDecoder {
 public:
  // `scratch` is this warp's memory for planes.
  BF16CODECS_DEVICE BlockDecoder(const Warp& warp, BlockMemory& memory, const Job& job,
                                 uint8_t* scratch, uint64_t scratch_size)
      : warp_(warp),
        memory_(memory),
        job_(job),
        items_(reinterpret_cast<uint8_t*>(job.items)),
        raw_size_(uint64_t{job.n} * job.width),
        scratch_(scratch),
        scratch_size_(scratch_size) {}

  BF16CODECS_DEVICE Verdict run() {
    if (job_.size > kMostPayload) return Verdict::elsewhere;
    if (has_other_base(warp_, memory_, job_)) return Verdict::other_base;
    warp_.once([&] { memory_.is_sound.store(0, uint32_t{parse()}); });
    warp_.sync();
    if (warp_.same(memory_.is_sound.load<uint32_t>(0)) == 0) return Verdict::corrupt;
    for (unsigned p = 0; p < job_.width; ++p) {
      const Mode of = mode(p);
      const bool is_here = of != Mode::zstd && of != Mode::scale && of != Mode::tiles &&
                           of != Mode::sparse && of != Mode::grid;
      if (!is_here) return Verdict::elsewhere;
    }
    Strips strips(warp_, memory_.strip, items_);
    const Verdict verdict = decode(strips);
    if (verdict != Verdict::done || (job_.flags & kJobChecked) == 0) return verdict;
    return strips.checksum() == job_.checksum ? Verdict::done : Verdict::corrupt;
  }

 private:
  BF16CODECS_DEVICE Mode parsed_mode(unsigned p) const {
    return Mode{memory_.modes.load<uint8_t>(p)};
  }

  // The following are called by all threads, with the same result.
  BF16CODECS_DEVICE Mode mode(unsigned p) const {
    return Mode{warp_.same(memory_.modes.load<uint8_t>(p))};
  }
  BF16CODECS_DEVICE const uint8_t* payload(unsigned p) const {
    return bytes_at(job_.payload) + warp_.same(memory_.begins.load<uint32_t>(4 * p));
  }
  BF16CODECS_DEVICE uint32_t payload_size(unsigned p) const {
    return warp_.same(memory_.sizes.load<uint32_t>(4 * p));
  }

  BF16CODECS_DEVICE bool is_grid() const { return (job_.flags & kJobGrid) != 0; }

  BF16CODECS_DEVICE static bool is_modelled(Mode mode) {
    return mode == Mode::scale || mode == Mode::tiles;
  }

  // Whether only plane 0 has a mode that covers several planes, and exactly the planes that it
  // covers are joined.
  BF16CODECS_DEVICE bool is_joined_well() const {
    const Mode first = parsed_mode(0);
    const bool is_whole = first == Mode::same || first == Mode::grid;
    const unsigned joined = is_whole ? job_.width : is_modelled(first) ? 2 : 1;
    for (unsigned p = 1; p < job_.width; ++p) {
      const Mode of = parsed_mode(p);
      if (of == Mode::same || of == Mode::difference || of == Mode::grid || is_modelled(of))
        return false;
      if (first != Mode::difference && (of == Mode::joined) != (p < joined)) return false;
    }
    return first != Mode::joined;
  }

  // Finds the planes' payloads. Called by one thread.
  BF16CODECS_DEVICE bool parse() {
    const uint8_t* const block = bytes_at(job_.payload);
    uint32_t at = job_.width;
    if (job_.size < at) return false;
    for (unsigned p = 0; p < job_.width; ++p) {
      if (block[p] >= kModes) return false;
      memory_.modes.store(p, block[p]);
    }
    if (!is_joined_well()) return false;
    for (unsigned p = 0; p < job_.width; ++p) {
      const Mode of = parsed_mode(p);
      uint32_t size = of == Mode::stored ? job_.n : of == Mode::constant ? 1 : 0;
      if (is_coded(of) && is_grid()) {
        size = job_.size - at;
      } else if (is_coded(of)) {
        if (job_.size - at < 4) return false;
        size = load_any<uint32_t>(block + at);
        at += 4;
      }
      memory_.sizes.store(4 * p, size);
    }
    for (unsigned p = job_.width; p-- != 0;) {
      const auto size = memory_.sizes.load<uint32_t>(4 * p);
      if (size > job_.size - at) return false;
      memory_.begins.store(4 * p, at);
      at += size;
    }
    return at == job_.size;
  }

  BF16CODECS_DEVICE Verdict decode(Strips& strips) {
    const Mode first = mode(0);
    if (first == Mode::same) return copy_base(strips);
    unsigned from = 0;
    if (first == Mode::difference) {
      if (job_.base == 0 || job_.section == 0) return Verdict::corrupt;
      from = job_.width - warp_.same(section().low);
      for (unsigned p = 1; p < job_.width; ++p) {
        if ((mode(p) == Mode::joined) != (p < from)) return Verdict::corrupt;
      }
    }
    const Verdict verdict = decode_planes(from);
    if (verdict != Verdict::done) return verdict;
    if (first == Mode::difference) return add_differences(strips);
    if (is_grid()) return Verdict::to_multiply;
    const bool is_rotated = (job_.flags & kJobByByte) == 0;
    if (is_coded(first) && job_.width == 2 && mode(1) == Mode::stored && is_rotated &&
        job_.items % 4 == 0 && !has_base_there()) {
      return Verdict::to_merge;
    }
    merge(warp_, memory_.planes, job_.width, is_rotated, job_.n, strips);
    return Verdict::done;
  }

  BF16CODECS_DEVICE const Section& section() const {
    return *reinterpret_cast<const Section*>(job_.section);
  }

  BF16CODECS_DEVICE Verdict copy_base(Strips& strips) {
    if (job_.base == 0) return Verdict::corrupt;
    pass_all(warp_, bytes_at(job_.base), raw_size_, strips);
    return Verdict::done;
  }

  BF16CODECS_DEVICE bool has_base_there() const {
    return job_.base != 0 && job_.base < job_.items + raw_size_ &&
           job_.items < job_.base + raw_size_;
  }

  // Decodes planes from `from` on, to memory where they can be merged.
  BF16CODECS_DEVICE Verdict decode_planes(unsigned from) {
    unsigned coded = 0;
    for (unsigned p = from; p < job_.width; ++p) coded += is_coded(mode(p)) ? 1 : 0;
    // The first coded plane goes to the end of the items' memory, unless their base lies there.
    const uint64_t stride = plane_stride(job_.n);
    uint8_t* in_items = has_base_there() ? nullptr : items_ + raw_size_ - job_.n;
    if (coded > (in_items != nullptr ? 1u : 0u) &&
        (coded - (in_items != nullptr ? 1 : 0)) * stride > scratch_size_) {
      return Verdict::pending;
    }
    uint8_t* next = scratch_;
    for (unsigned p = from; p < job_.width; ++p) {
      const Mode of = mode(p);
      if (!is_coded(of)) {
        const uint8_t* const symbols = payload(p);
        warp_.once([&] {
          const bool is_constant = of == Mode::constant;
          memory_.planes.put(p, is_constant ? nullptr : symbols, is_constant ? *symbols : 0);
        });
        continue;
      }
      uint8_t* plane = in_items;
      if (plane == nullptr) {
        plane = next;
        next += stride;
      }
      in_items = nullptr;
      warp_.once([&] { memory_.planes.put(p, plane); });
      if (!decode_plane(p, of, plane)) return Verdict::corrupt;
    }
    warp_.sync();
    return Verdict::done;
  }

  BF16CODECS_DEVICE bool decode_plane(unsigned p, Mode of, uint8_t* plane) {
    warp_.sync();
    const uint8_t* const bytes = payload(p);
    const uint32_t size = payload_size(p), n = job_.n;
    switch (of) {
      case Mode::rans_pairs:
        return decode_pairs(warp_, memory_.mode.pairs, bytes, size, plane, n);
      case Mode::rans_wide:
        return decode_wide(warp_, memory_.mode.wide, bytes, size, plane, n);
      default:
        return decode_huffman(warp_, memory_.mode.huffman, bytes, size, plane, n);
    }
  }

  BF16CODECS_DEVICE Verdict add_differences(Strips& strips) {
    warp_.sync();
    const auto decode = [&]<typename T>(T) {
      return decode_differences<T>(warp_, memory_.mode.delta, job_, payload(0), payload_size(0),
                                   memory_.planes, strips);
    };
    const bool is_sound = job_.width == 8 ? decode(uint64_t{}) : decode(uint32_t{});
    return is_sound ? Verdict::done : Verdict::corrupt;
  }

  const Warp& warp_;
  BlockMemory& memory_;
  const Job& job_;
  uint8_t* const items_;
  const uint64_t raw_size_;
  uint8_t* const scratch_;
  const uint64_t scratch_size_;
};

}  // namespace bf16codecs::cuda
