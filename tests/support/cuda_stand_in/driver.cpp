// A stand-in for NVIDIA's driver (libcuda.so.1), so that cuda-core runs, as it is, where there is
// no GPU: see machine.h. It has the functions that this package needs, and no others; cuda-core
// says which one is missing.

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>

#include "machine.h"

using namespace stand_in;

namespace {

template <typename T>
auto find(std::map<void*, std::unique_ptr<T>>& all, void* handle) {
  const auto found = all.find(handle);
  return found == all.end() ? nullptr : found->second.get();
}

template <typename T>
void* keep(std::map<void*, std::unique_ptr<T>>& all, T value) {
  auto pointer = std::make_unique<T>(std::move(value));
  void* handle = pointer.get();
  all[handle] = std::move(pointer);
  return handle;
}

bool is_device(int ordinal) {
  return 0 <= ordinal && static_cast<std::size_t>(ordinal) < machine().contexts.size();
}

int attribute(int which) {
  switch (which) {
    case 1:
      return 1024;  // threads of a block
    case 10:
      return 32;  // threads of a warp
    case 16:
      return 132;  // multiprocessors
    case 41:
      return 1;  // one address space
    case 75:
      return static_cast<int>(machine().arch / 10);
    case 76:
      return static_cast<int>(machine().arch % 10);
    default:
      return 0;
  }
}

}  // namespace

#define API extern "C" __attribute__((visibility("default"))) Result
#define BEGIN(function)                                              \
  const std::lock_guard<std::recursive_mutex> lock(machine().mutex); \
  if (Result failed = machine().begin(#function)) return failed

API cuInit(unsigned) {
  BEGIN(cuInit);
  return machine().contexts.empty() ? kNoDevice : kSuccess;
}
API cuDriverGetVersion(int* version) {
  BEGIN(cuDriverGetVersion);
  const char* given = std::getenv("BF16CODECS_STAND_IN_VERSION");
  *version = given ? std::atoi(given) : 13900;  // newer than any compiler
  return kSuccess;
}
API cuGetErrorName(Result error, const char** name) {
  static const std::map<Result, const char*> names = {
      {kSuccess, "CUDA_SUCCESS"},
      {kInvalidValue, "CUDA_ERROR_INVALID_VALUE"},
      {kOutOfMemory, "CUDA_ERROR_OUT_OF_MEMORY"},
      {kNoDevice, "CUDA_ERROR_NO_DEVICE"},
      {kInvalidDevice, "CUDA_ERROR_INVALID_DEVICE"},
      {kInvalidImage, "CUDA_ERROR_INVALID_IMAGE"},
      {kInvalidContext, "CUDA_ERROR_INVALID_CONTEXT"},
      {kNoBinaryForGpu, "CUDA_ERROR_NO_BINARY_FOR_GPU"},
      {kInvalidHandle, "CUDA_ERROR_INVALID_HANDLE"},
      {kNotFound, "CUDA_ERROR_NOT_FOUND"},
      {kNotReady, "CUDA_ERROR_NOT_READY"},
      {kIllegalAddress, "CUDA_ERROR_ILLEGAL_ADDRESS"},
      {kLaunchFailed, "CUDA_ERROR_LAUNCH_FAILED"},
  };
  const auto found = names.find(error);
  *name = found == names.end() ? "CUDA_ERROR_UNKNOWN" : found->second;
  return kSuccess;
}
API cuGetErrorString(Result error, const char** text) {
  return cuGetErrorName(error, text);
}

// NVRTC looks for it, for what profilers want, and does without where it is told that there is
// none.
API cuGetExportTable(const void** table, const Uuid*) {
  *table = nullptr;
  return kNotFound;
}

// --- devices and contexts ------------------------------------------------------------------------

API cuDeviceGetCount(int* count) {
  BEGIN(cuDeviceGetCount);
  *count = static_cast<int>(machine().contexts.size());
  return kSuccess;
}
API cuDeviceGet(int* device, int ordinal) {
  BEGIN(cuDeviceGet);
  *device = ordinal;
  return is_device(ordinal) ? kSuccess : kInvalidDevice;
}
API cuDeviceGetName(char* name, int length, int device) {
  BEGIN(cuDeviceGetName);
  std::snprintf(name, static_cast<std::size_t>(length), "Stand-in %d", device);
  return kSuccess;
}
API cuDeviceGetUuid_v2(Uuid* uuid, int device) {
  BEGIN(cuDeviceGetUuid);
  *uuid = {};
  uuid->bytes[0] = static_cast<char>(device);
  return kSuccess;
}
API cuDeviceTotalMem_v2(std::size_t* bytes, int) {
  BEGIN(cuDeviceTotalMem);
  *bytes = machine().memory;
  return kSuccess;
}
API cuDeviceGetAttribute(int* value, int which, int device) {
  BEGIN(cuDeviceGetAttribute);
  *value = attribute(which);
  return is_device(device) ? kSuccess : kInvalidDevice;
}
API cuDevicePrimaryCtxRetain(Context** context, int device) {
  BEGIN(cuDevicePrimaryCtxRetain);
  if (!is_device(device)) return kInvalidDevice;
  *context = machine().contexts[static_cast<std::size_t>(device)].get();
  ++(*context)->uses;
  return kSuccess;
}
API cuDevicePrimaryCtxRelease_v2(int device) {
  BEGIN(cuDevicePrimaryCtxRelease);
  if (!is_device(device)) return kInvalidDevice;
  auto& uses = machine().contexts[static_cast<std::size_t>(device)]->uses;
  if (uses == 0) return machine().wrong("a context is released that nobody holds", kInvalidContext);
  if (--uses == 0)
    machine().expect_empty(machine().contexts[static_cast<std::size_t>(device)].get());
  return kSuccess;
}
API cuCtxGetCurrent(Context** context) {
  BEGIN(cuCtxGetCurrent);
  *context = current();
  return kSuccess;
}
API cuCtxSetCurrent(Context* context) {
  BEGIN(cuCtxSetCurrent);
  auto& stack = current_contexts();
  if (!stack.empty()) stack.pop_back();
  if (context) stack.push_back(context);
  return kSuccess;
}
API cuCtxPushCurrent_v2(Context* context) {
  BEGIN(cuCtxPushCurrent);
  if (!context) return kInvalidContext;
  current_contexts().push_back(context);
  return kSuccess;
}
API cuCtxPopCurrent_v2(Context** context) {
  BEGIN(cuCtxPopCurrent);
  if (!current()) return kInvalidContext;
  if (context) *context = current();
  current_contexts().pop_back();
  return kSuccess;
}
API cuCtxGetDevice(int* device) {
  BEGIN(cuCtxGetDevice);
  if (!current()) return kInvalidContext;
  *device = current()->device;
  return kSuccess;
}
API cuCtxSynchronize() {
  BEGIN(cuCtxSynchronize);
  if (!current()) return kInvalidContext;
  machine().run_all();
  return kSuccess;
}

// --- memory --------------------------------------------------------------------------------------

API cuMemGetInfo_v2(std::size_t* free, std::size_t* total) {
  BEGIN(cuMemGetInfo);
  if (!current()) return kInvalidContext;
  *total = machine().memory;
  *free = *total - machine().used(current());
  return kSuccess;
}
API cuMemAlloc_v2(Address* address, std::size_t size) {
  BEGIN(cuMemAlloc);
  return current() ? machine().allocate(size, current(), address) : kInvalidContext;
}
API cuMemFree_v2(Address address) {
  BEGIN(cuMemFree);
  if (!current()) return kInvalidContext;
  return address ? machine().free(address, true) : kSuccess;
}
API cuMemHostAlloc(void** address, std::size_t size, unsigned) {
  BEGIN(cuMemHostAlloc);
  if (!current()) return kInvalidContext;
  return machine().allocate(size, nullptr, reinterpret_cast<Address*>(address));
}
API cuMemFreeHost(void* address) {
  BEGIN(cuMemFreeHost);
  if (!current()) return kInvalidContext;
  return address ? machine().free(reinterpret_cast<Address>(address), false) : kSuccess;
}
API cuMemcpyAsync(Address to, Address from, std::size_t size, void* stream) {
  BEGIN(cuMemcpyAsync);
  return machine().copy(to, from, size, stream);
}
API cuMemsetD8Async(Address to, unsigned char value, std::size_t size, void* stream) {
  BEGIN(cuMemsetD8Async);
  return machine().fill(to, value, size, stream);
}

// --- streams and events --------------------------------------------------------------------------

API cuStreamCreateWithPriority(void** handle, unsigned, int) {
  BEGIN(cuStreamCreate);
  if (!current()) return kInvalidContext;
  auto stream = std::make_shared<Stream>(current());
  *handle = stream.get();
  machine().streams[*handle] = stream;
  return kSuccess;
}
API cuStreamCreate(void** handle, unsigned flags) {
  return cuStreamCreateWithPriority(handle, flags, 0);
}
API cuStreamDestroy_v2(void* handle) {
  BEGIN(cuStreamDestroy);
  const auto found = machine().streams.find(handle);
  if (found == machine().streams.end()) return machine().wrong("a stream is destroyed twice");
  found->second->run();
  machine().streams.erase(found);
  return kSuccess;
}
API cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  BEGIN(cuCtxGetStreamPriorityRange);
  *least = *greatest = 0;
  return kSuccess;
}
API cuStreamGetCtx(void* handle, Context** context) {
  BEGIN(cuStreamGetCtx);
  const auto found = machine().streams.find(handle);
  *context = found == machine().streams.end() ? current() : found->second->context;
  return *context ? kSuccess : kInvalidContext;
}
API cuStreamSynchronize(void* handle) {
  BEGIN(cuStreamSynchronize);
  StreamPointer stream;
  if (Result failed = machine().stream_of(handle, &stream)) return failed;
  stream->run();
  return kSuccess;
}
API cuEventCreate(void** handle, unsigned flags) {
  BEGIN(cuEventCreate);
  if (!current()) return kInvalidContext;
  constexpr unsigned kWithoutTime = 2;
  auto time = flags & kWithoutTime ? nullptr : std::make_shared<Time>();
  *handle = keep(machine().events, Event{current(), nullptr, 0, time});
  return kSuccess;
}
API cuEventDestroy_v2(void* handle) {
  BEGIN(cuEventDestroy);
  if (machine().events.erase(handle)) return kSuccess;
  return machine().wrong("an event is destroyed twice");
}
API cuEventRecord(void* handle, void* stream_handle) {
  BEGIN(cuEventRecord);
  StreamPointer stream;
  if (Result failed = machine().stream_of(stream_handle, &stream)) return failed;
  Event* event = find(machine().events, handle);
  if (!event || event->context != stream->context) {
    return machine().wrong("an event of another context than the stream", kInvalidHandle);
  }
  if (event->time) {
    stream->add([time = event->time] { *time = std::chrono::steady_clock::now(); });
  }
  event->stream = stream;
  event->position = stream->added;
  return kSuccess;
}
API cuEventElapsedTime(float* milliseconds, void* start_handle, void* end_handle) {
  BEGIN(cuEventElapsedTime);
  if (!current()) return kInvalidContext;
  const Event* start = find(machine().events, start_handle);
  const Event* end = find(machine().events, end_handle);
  for (const Event* event : {start, end}) {
    if (!event || !event->stream || !event->time) return kInvalidHandle;
    if (event->stream->done < event->position) return kNotReady;
  }
  *milliseconds = std::chrono::duration<float, std::milli>(*end->time - *start->time).count();
  return kSuccess;
}
API cuEventQuery(void* handle) {
  BEGIN(cuEventQuery);
  if (!current()) return kInvalidContext;
  const Event* event = find(machine().events, handle);
  if (!event) return machine().wrong("an event that is not there", kInvalidHandle);
  return event->stream && event->stream->done < event->position ? kNotReady : kSuccess;
}
API cuEventSynchronize(void* handle) {
  BEGIN(cuEventSynchronize);
  if (!current()) return kInvalidContext;
  const Event* event = find(machine().events, handle);
  if (!event) return machine().wrong("an event that is not there", kInvalidHandle);
  if (event->stream) event->stream->run(event->position);
  return kSuccess;
}

// --- kernels -------------------------------------------------------------------------------------

API cuLibraryLoadData(void** handle, const void* code, void*, void*, unsigned, void*, void*,
                      unsigned) {
  BEGIN(cuLibraryLoadData);
  auto image = read_image(static_cast<const char*>(code));
  if (!image) return kInvalidImage;
  if (image->arch && image->arch != machine().arch) return kNoBinaryForGpu;
  *handle = keep(machine().libraries, Library{std::move(*image)});
  return kSuccess;
}
API cuLibraryUnload(void* handle) {
  BEGIN(cuLibraryUnload);
  machine().run_all();
  std::erase_if(machine().kernels, [=](auto& kernel) { return kernel.second->library == handle; });
  return machine().libraries.erase(handle) ? kSuccess : kInvalidHandle;
}
API cuLibraryGetKernel(void** handle, void* library_handle, const char* name) {
  BEGIN(cuLibraryGetKernel);
  const Library* library = find(machine().libraries, library_handle);
  if (!library) return kInvalidHandle;
  const auto found = library->image.kernels.find(name);
  if (found == library->image.kernels.end()) return kNotFound;
  *handle = keep(machine().kernels, Kernel{library, name, &found->second});
  return kSuccess;
}
API cuKernelGetParamInfo(void* handle, std::size_t index, std::size_t* offset, std::size_t* size) {
  BEGIN(cuKernelGetParamInfo);
  const Kernel* kernel = find(machine().kernels, handle);
  if (!kernel) return kInvalidHandle;
  if (index >= kernel->parameters->size()) return kInvalidValue;
  if (offset) *offset = (*kernel->parameters)[index].offset;
  if (size) *size = (*kernel->parameters)[index].size;
  return kSuccess;
}
API cuKernelGetAttribute(int* value, int, void* handle, int device) {
  BEGIN(cuKernelGetAttribute);
  *value = 0;  // it has no registers
  if (!find(machine().kernels, handle)) return kInvalidHandle;
  return is_device(device) ? kSuccess : kInvalidDevice;
}
API cuLaunchKernelEx(const LaunchConfig* config, void* handle, void** arguments, void**) {
  BEGIN(cuLaunchKernel);
  const Kernel* kernel = find(machine().kernels, handle);
  return kernel ? machine().launch(*kernel, *config, arguments) : kInvalidHandle;
}
API cuLaunchKernel(void* handle, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                   unsigned bz, unsigned shared_bytes, void* stream, void** arguments, void**) {
  const LaunchConfig config{{gx, gy, gz}, {bx, by, bz}, shared_bytes, stream, nullptr, 0};
  return cuLaunchKernelEx(&config, handle, arguments, nullptr);
}

// How cuda-core finds all the others: by the name without the version.
API cuGetProcAddress_v2(const char* name, void** function, int, std::uint64_t, int* found) {
  static void* const self = [] {
    Dl_info info;
    dladdr(reinterpret_cast<void*>(&cuInit), &info);
    return dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD);
  }();
  *function = dlsym(self, (std::string(name) + "_v2").c_str());
  if (!*function) *function = dlsym(self, name);
  if (found) *found = *function ? 0 : 1;
  return *function ? kSuccess : kNotFound;
}
