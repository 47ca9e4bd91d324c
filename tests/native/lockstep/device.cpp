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

std::vector<cuda::Verdict> Device::run(const std::vector<cuda::Job>& jobs, uint8_t kernels) const {
  std::vector<uint8_t> verdicts(jobs.size());
  const auto n = static_cast<uint32_t>(jobs.size());
  const cuda::Warp warp(backwards);
  if ((kernels & cuda::kDecodeHuffman) != 0 && !joins_blocks) {
    kernels = static_cast<uint8_t>((kernels & ~cuda::kDecodeHuffman) | cuda::kDecodeAny);
  }
  // Calls function(memory, next) if the kernel is wanted.
  const auto launch = [&]<typename Memory>(cuda::Kernel kernel, auto function) {
    uint32_t next = 0;
    if ((kernels & kernel) != 0) function(*std::make_unique<Memory>(), &next);
  };
  launch.operator()<cuda::FusedMemory>(cuda::kDecodeFused, [&](auto& memory, uint32_t* next) {
    cuda::decode_fused(warp, memory, jobs.data(), n, next, verdicts.data());
  });
  launch.operator()<cuda::FusedDeltaMemory>(
      cuda::kDecodeFusedDelta, [&](auto& memory, uint32_t* next) {
        cuda::decode_fused_delta(warp, memory, jobs.data(), n, next, verdicts.data());
      });
  launch.operator()<cuda::HuffmanBlocksMemory>(
      cuda::kDecodeHuffman, [&](auto& memory, uint32_t* next) {
        cuda::decode_huffman(warp, memory, jobs.data(), n, next, verdicts.data());
      });
  launch.operator()<cuda::BlockMemory>(cuda::kDecodeAny, [&](auto& memory, uint32_t* next) {
    static Bytes scratch(2 * kMaxBlockBytes);
    cuda::decode_any(warp, memory, jobs.data(), decodes_unusual ? n : 0, next, verdicts.data(),
                     scratch.data(), has_scratch ? scratch.size() : 0);
  });
  launch.operator()<cuda::MergeMemory>(cuda::kMergePlanes, [&](auto& memory, uint32_t* next) {
    cuda::merge_planes(warp, memory, jobs.data(), n, next, verdicts.data());
  });
  launch.operator()<cuda::LevelsMemory>(cuda::kMultiplyLevels, [&](auto& memory, uint32_t* next) {
    cuda::multiply_levels(warp, memory, jobs.data(), n, next, verdicts.data());
  });
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
    const Copy payload(frame + index.offsets[first], index.offsets[last] - index.offsets[first]);
    const DevicePlan plan(index, first, last, payload.get());
    Bytes model = plan.model(0);
    const Bytes placed = plan.model(address_of(model.data()));
    std::copy(placed.begin(), placed.end(), model.begin());
    uint8_t* const items = out + version * version_size;
    std::vector<cuda::Job> jobs = plan.jobs({address_of(payload.get()), address_of(items),
                                             address_of(of_version), address_of(model.data())});
    for (cuda::Job& job : jobs) {
      if (!checks_base) job.flags &= static_cast<uint8_t>(~cuda::kJobBaseChecked);
    }
    // Those that the plan names; all if the host has to decode some of the blocks.
    const auto needs = plan.needs(payload.get(), address_of(items));
    std::vector<cuda::Verdict> verdicts = run(jobs, needs ? needs->kernels : cuda::kAllKernels);
    for (size_t b = first; b < last; ++b) {
      if (verdicts[b - first] != cuda::Verdict::elsewhere) continue;
      CHECK(!needs);
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
