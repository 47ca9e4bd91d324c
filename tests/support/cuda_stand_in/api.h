#pragma once

// The part of NVIDIA's driver interface that the stand-in has, as its header says: no file of the
// CUDA toolkit is needed to build it.

#include <cstdint>

namespace stand_in {

using Result = int;  // CUresult
enum : Result {
  kSuccess = 0,
  kInvalidValue = 1,
  kOutOfMemory = 2,
  kNoDevice = 100,
  kInvalidDevice = 101,
  kInvalidImage = 200,
  kInvalidContext = 201,
  kNoBinaryForGpu = 209,
  kInvalidHandle = 400,
  kNotFound = 500,
  kNotReady = 600,
  kIllegalAddress = 700,
  kLaunchFailed = 719,
};

using Address = std::uintptr_t;  // CUdeviceptr

// CUlaunchConfig
struct LaunchConfig {
  unsigned grid[3];
  unsigned block[3];
  unsigned shared_bytes;
  void* stream;
  void* attributes;
  unsigned n_attributes;
};

// CUuuid
struct Uuid {
  char bytes[16];
};

}  // namespace stand_in
