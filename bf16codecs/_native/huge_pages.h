#pragma once

#include <cstddef>
#include <cstdint>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace bf16codecs {

// The system maps large new memory page by page when it is first written. With huge pages that
// takes a fifth of the time: copying runs at 11.5 GB/s instead of 2.
inline void advise_huge_pages(void* memory, size_t size) {
#if defined(__linux__)
  constexpr size_t kWorthwhile = size_t{1} << 22, kPage = 4096;
  if (size < kWorthwhile) return;
  const uintptr_t begin = (reinterpret_cast<uintptr_t>(memory) + kPage - 1) & ~(kPage - 1);
  const uintptr_t end = (reinterpret_cast<uintptr_t>(memory) + size) & ~(kPage - 1);
  madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
#else
  (void)memory, (void)size;
#endif
}

}  // namespace bf16codecs
