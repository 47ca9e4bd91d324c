// Which kernel sets the processor runs. Each of them must be supported twice: by the processor,
// which cpuid reports, and by the operating system, which must save the registers when it switches
// threads.

#include "kernels/dispatch.h"

#if defined(__x86_64__) || defined(_M_X64)
#if defined(_MSC_VER)
#include <intrin.h>
#else
#include <cpuid.h>
#endif
#endif

namespace bf16codecs {
namespace {

#if defined(__x86_64__) || defined(_M_X64)

struct Registers {
  uint32_t eax, ebx, ecx, edx;
};

Registers cpuid(uint32_t leaf, uint32_t subleaf = 0) {
#if defined(_MSC_VER)
  int r[4];
  __cpuidex(r, static_cast<int>(leaf), static_cast<int>(subleaf));
  return {static_cast<uint32_t>(r[0]), static_cast<uint32_t>(r[1]), static_cast<uint32_t>(r[2]),
          static_cast<uint32_t>(r[3])};
#else
  Registers r{};
  __cpuid_count(leaf, subleaf, r.eax, r.ebx, r.ecx, r.edx);
  return r;
#endif
}

// The register state that the operating system saves (XCR0). Without it, instructions that the
// processor has raise an exception.
uint64_t saved_state() {
#if defined(_MSC_VER)
  return _xgetbv(0);
#else
  uint32_t low, high;
  __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return static_cast<uint64_t>(high) << 32 | low;
#endif
}

constexpr bool has_all(uint64_t value, uint64_t bits) {
  return (value & bits) == bits;
}

struct Support {
  bool avx2 = false, avx512 = false, avx512vbmi2 = false, avx512bf16 = false;

  Support() {
    // All that the kernels' files are compiled for (CMakeLists.txt), not vectors alone: -mavx2
    // comes with BMI, LZCNT and POPCNT.
    constexpr uint32_t kPopcntOsxsave = 1u << 23 | 1u << 27, kLzcnt = 1u << 5;
    constexpr uint32_t kBmiAvx2 = 1u << 3 | 1u << 5;
    constexpr uint32_t kAvx512 = 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31;  // F, DQ, BW, VL
    constexpr uint32_t kVbmi = 1u << 1 | 1u << 6;                            // VBMI, VBMI2
    constexpr uint32_t kBf16 = 1u << 5;                                      // of subleaf 1
    constexpr uint64_t kYmm = 0x06, kZmm = 0xE6;  // XCR0: SSE and AVX; also opmask and ZMM
    if (cpuid(0).eax < 7 || !has_all(cpuid(1).ecx, kPopcntOsxsave)) return;
    const Registers features = cpuid(7);
    avx2 = has_all(features.ebx, kBmiAvx2) && has_all(cpuid(0x80000001).ecx, kLzcnt) &&
           has_all(saved_state(), kYmm);
    avx512 = avx2 && has_all(features.ebx, kAvx512) && has_all(saved_state(), kZmm);
    avx512vbmi2 = avx512 && has_all(features.ecx, kVbmi);
    avx512bf16 = avx512vbmi2 && features.eax >= 1 && has_all(cpuid(7, 1).eax, kBf16);
  }
};

#endif

}  // namespace

std::vector<const Kernels*> available_kernels() {
  std::vector<const Kernels*> sets{&kScalarKernels};
#if defined(__x86_64__) || defined(_M_X64)
  const Support support;
  if (support.avx2) sets.push_back(&kAvx2Kernels);
  if (support.avx512) sets.push_back(&kAvx512Kernels);
  if (support.avx512vbmi2) sets.push_back(&kAvx512Vbmi2Kernels);
  if (support.avx512bf16) sets.push_back(&kAvx512Bf16Kernels);
#elif defined(__AARCH64EL__) || defined(_M_ARM64)
  sets.push_back(&kNeonKernels);
#elif defined(__wasm_simd128__)
  sets.push_back(&kSimd128Kernels);
#endif
  return sets;
}

std::vector<std::string> available_isas() {
  std::vector<std::string> names;
  for (const Kernels* set : available_kernels()) names.emplace_back(set->name);
  return names;
}

}  // namespace bf16codecs
