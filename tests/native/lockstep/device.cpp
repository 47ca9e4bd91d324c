#include "lockstep/device.h"

#include <memory>

#include "codec/device_plan.h"
#include "cuda/kernels.h"
#include "format/errors.h"

namespace bf16codecs::test {
namespace {

uint64_t address_of(const uint8_t* p) {
  return reinterpret_cast<uint64_t>(p);
}

// A copy of bytes at an odd address, with nothing after them.
class Copy {
 public:
  Copy(const uint8_t* bytes, size_t size) : memory_(new uint8_t[size + 1]) {
    std::copy_n(bytes, size, memory_.get() + 1);
  }
  const uint8_t* get() const { return memory_.get() + 1; }

 private:
  std::unique_ptr<uint8_t[]> memory_;
};

}  // namespace

std::vector<cuda::Verdict> Device::run(const std::vector<cuda::Job>& jobs) const {
  std::vector<uint8_t> verdicts(jobs.size());
  const auto n = static_cast<uint32_t>(jobs.size());
  const cuda::Warp warp(backwards);
  uint32_t next[3] = {};
  const auto fused = std::make_unique<cuda::FusedMemory>();
  cuda::decode_fused(warp, *fused, jobs.data(), n, &next[0], verdicts.data());
  if (joins_blocks) {
    const auto blocks = std::make_unique<cuda::HuffmanBlocksMemory>();
    cuda::decode_huffman(warp, *blocks, jobs.data(), n, &next[2], verdicts.data());
  }
  const auto memory = std::make_unique<cuda::BlockMemory>();
  const uint32_t left = decodes_unusual ? n : 0;
  static Bytes scratch(2 * kMaxBlockBytes);
  cuda::decode_any(warp, *memory, jobs.data(), left, &next[1], verdicts.data(), scratch.data(),
                   has_scratch ? scratch.size() : 0);
  std::vector<cuda::Verdict> result;
  for (const uint8_t verdict : verdicts) result.push_back(cuda::Verdict{verdict});
  return result;
}

std::vector<cuda::Verdict> Device::decode(const FrameIndex& index, const uint8_t* frame,
                                          const uint8_t* base, uint8_t* out,
                                          const Zstd* zstd) const {
  const Header& header = index.header;
  const auto per_version = static_cast<size_t>(header.version_blocks());
  const size_t version_size = static_cast<size_t>(header.version_items()) * header.width();
  std::vector<cuda::Verdict> all;
  for (size_t first = 0; first < index.blocks(); first += per_version) {
    const size_t version = first / per_version, last = first + per_version;
    const uint8_t* of_version = base;
    if (header.versions > 1) {
      const Version& of = index.versions[version];
      of_version = of.has_base() ? out + of.parent * version_size : nullptr;
    }
    const DevicePlan plan(index, first, last);
    const Copy payload(frame + index.offsets[first], index.offsets[last] - index.offsets[first]);
    Bytes model = plan.model(0);
    const Bytes placed = plan.model(address_of(model.data()));
    std::copy(placed.begin(), placed.end(), model.begin());
    uint8_t* const items = out + version * version_size;
    std::vector<cuda::Job> jobs = plan.jobs({address_of(payload.get()), address_of(items),
                                             address_of(of_version), address_of(model.data())});
    for (cuda::Job& job : jobs) {
      if (!checks_base) job.flags &= static_cast<uint8_t>(~cuda::kJobBaseChecked);
    }
    std::vector<cuda::Verdict> verdicts = run(jobs);
    for (size_t b = first; b < last; ++b) {
      if (verdicts[b - first] != cuda::Verdict::elsewhere) continue;
      const size_t before =
          static_cast<size_t>(header.first_item(b) - header.first_item(first)) * header.width();
      try {
        decode_blocks(index, frame + index.offsets[b], b, b + 1, zstd,
                      of_version == nullptr ? nullptr : of_version + before, items + before);
        verdicts[b - first] = cuda::Verdict::done;
      } catch (const CorruptDataError&) {
        verdicts[b - first] = cuda::Verdict::corrupt;
      }
    }
    all.insert(all.end(), verdicts.begin(), verdicts.end());
  }
  return all;
}

}  // namespace bf16codecs::test
