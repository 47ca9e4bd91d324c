// Runs the kernels of every instruction set that this processor has against the scalar ones, and
// whole frames with the best set, or with what BF16CODECS_ISA names. Prints what ran; the digest
// in the last line, of frames and of differences, is the same for every instruction set and
// platform.

#include "kernels_test.h"

#include <cinttypes>
#include <cstring>

#include "check.h"
#include "digest.h"
#include "kernels/dispatch.h"
#include "tiles_tables.h"

namespace bf16codecs::test {
namespace {

// Asked of the compiler, not of the dispatcher: a set that it overlooks must not go untested.
bool processor_has_more_than_scalar() {
#if defined(__x86_64__) && defined(__GNUC__)
  return __builtin_cpu_supports("avx2") != 0;
#elif defined(__AARCH64EL__) || defined(_M_ARM64) || defined(__wasm_simd128__)
  return true;
#else
  return false;
#endif
}

void test_all() {
  const std::vector<const Kernels*> sets = available_kernels();
  CHECK(sets.front() == &kScalarKernels);
  CHECK(sets.size() > 1 || !processor_has_more_than_scalar());
  test_tile_tables();
  std::vector<uint64_t> digests;
  for (const Kernels* set : sets) {
    // The scalar set against itself tests the tests: that what they give a kernel is allowed.
    test_planes(*set);
    test_pairs(*set);
    test_huffman_pack(*set);
    test_sparse(*set);
    test_tiles(*set);
    test_magnitudes(*set);
    test_quantized(*set);
    test_tiles_ahead(*set);
    digests = {test_delta(*set), test_delta_items(*set)};
    std::printf("kernels: %s\n", set->name);
  }
  digests.push_back(test_frames());
  Digest digest;
  digest.update(digests);
  std::printf("frames: %s\ndigest: %016" PRIx64 "\n", kernels().name, digest.value());
}

}  // namespace
}  // namespace bf16codecs::test

int main() {
  bf16codecs::test::test_all();
  return 0;
}
