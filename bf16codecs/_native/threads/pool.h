#pragma once

#include <cstddef>
#include <functional>

#include "workspace.h"

namespace bf16codecs {

// The number of threads that may work in the codecs at once, over all calls together. Initially
// BF16CODECS_NUM_THREADS, or the number of processors that this process may run on.
unsigned get_num_threads();
void set_num_threads(unsigned n);

// The largest number of threads.
inline constexpr unsigned kMaxThreads = 1024;

// Parses a number of threads; returns 0 unless it is from 1 to kMaxThreads.
unsigned parse_threads(const char* text);

using Task = std::function<void(size_t i, Workspace& workspace)>;

// Runs tasks 0 ... n - 1, started in this order, on this thread and on idle threads of a pool that
// all calls share. Each thread has a workspace of its own. A call that finds the pool busy runs on
// its thread alone, so that a caller's threads (zarr's, dask's) do not multiply. After an exception
// no further task starts, and the exception of the lowest index is rethrown. Safe after fork().
void parallel_for(size_t n, const Task& task);

}  // namespace bf16codecs
