// The end of driver.cpp: how cuda-core finds its functions, and what tests tell it and ask it.

API cuGetProcAddress_v2(const char* name, void** function, int, std::uint64_t, int* found) {
#define ENTRY(name) {#name, reinterpret_cast<void*>(&name)}
#define ENTRY_V2(name) {#name, reinterpret_cast<void*>(&name##_v2)}
  static const std::map<std::string_view, void*> entries = {
      ENTRY_V2(cuGetProcAddress), ENTRY(cuInit), ENTRY(cuDriverGetVersion), ENTRY(cuGetErrorName), ENTRY(cuGetErrorString),
      ENTRY(cuDeviceGetCount), ENTRY(cuDeviceGet), ENTRY(cuDeviceGetName),
      ENTRY_V2(cuDeviceGetUuid), ENTRY_V2(cuDeviceTotalMem), ENTRY(cuDeviceGetAttribute),
      ENTRY(cuDevicePrimaryCtxRetain), ENTRY_V2(cuDevicePrimaryCtxRelease),
      ENTRY(cuCtxGetCurrent), ENTRY(cuCtxSetCurrent), ENTRY_V2(cuCtxPushCurrent),
      ENTRY_V2(cuCtxPopCurrent), ENTRY(cuCtxGetDevice), ENTRY(cuCtxSynchronize),
      ENTRY_V2(cuMemGetInfo), ENTRY_V2(cuMemAlloc), ENTRY_V2(cuMemFree), ENTRY(cuMemHostAlloc),
      ENTRY(cuMemFreeHost), ENTRY(cuMemcpyAsync), ENTRY(cuMemsetD8Async),
      ENTRY(cuStreamCreateWithPriority), ENTRY(cuStreamCreate), ENTRY_V2(cuStreamDestroy),
      ENTRY(cuCtxGetStreamPriorityRange), ENTRY(cuStreamGetCtx), ENTRY(cuStreamSynchronize),
      ENTRY(cuStreamWaitEvent), ENTRY(cuEventCreate), ENTRY_V2(cuEventDestroy),
      ENTRY(cuEventRecord), ENTRY(cuEventSynchronize), ENTRY(cuEventQuery),
      ENTRY(cuLibraryLoadData), ENTRY(cuLibraryUnload), ENTRY(cuLibraryGetKernel),
      ENTRY(cuKernelGetParamInfo), ENTRY(cuLaunchKernelEx), ENTRY(cuLaunchKernel),
  };
#undef ENTRY
#undef ENTRY_V2
  const auto entry = entries.find(name);
  *function = entry == entries.end() ? nullptr : entry->second;
  if (found) *found = *function ? 0 : 1;
  return *function ? kSuccess : kNotFound;
}

#define HOOK(type) extern "C" __attribute__((visibility("default"))) type

// The n-th next call of a function fails; no function, none does.
HOOK(void) stand_in_fail(const char* function, long n, Result result) {
  const std::lock_guard<std::recursive_mutex> lock(machine().mutex);
  failure = {function, n, result};
}
HOOK(long) stand_in_calls(const char* function) {
  const std::lock_guard<std::recursive_mutex> lock(machine().mutex);
  return calls[function];
}
// How many there are: blocks of memory, streams, events.
HOOK(long) stand_in_live(const char* kind) {
  const std::lock_guard<std::recursive_mutex> lock(machine().mutex);
  const std::string_view of = kind;
  const std::size_t n = of == "blocks"    ? machine().blocks.size()
                        : of == "streams" ? machine().streams.size()
                                          : machine().events.size();
  return static_cast<long>(n);
}
// What was done last that no program should do, since this was asked last.
HOOK(void) stand_in_misuse(char* text, std::size_t size) {
  const std::lock_guard<std::recursive_mutex> lock(machine().mutex);
  std::snprintf(text, size, "%s", machine().misuse.c_str());
  machine().misuse.clear();
}
HOOK(void) stand_in_set_memory(std::size_t bytes) {
  const std::lock_guard<std::recursive_mutex> lock(machine().mutex);
  machine().memory = bytes;
}
