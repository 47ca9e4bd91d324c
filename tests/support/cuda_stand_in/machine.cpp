#include "machine.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace stand_in {
namespace {

constexpr std::size_t kAlignment = 256, kZone = 256;  // behind each block, to be found as it was
constexpr unsigned char kZoneByte = 0xA5, kFresh = 0xCD, kFreed = 0xDD;

std::size_t round_up(std::size_t size) {
  return (size + kAlignment - 1) / kAlignment * kAlignment;
}

using HostLaunch = void (*)(const char* kernel, uint32_t warps, void** arguments);

HostLaunch host_launch() {
  const char* path = std::getenv("BF16CODECS_HOST_KERNELS");
  void* library = path ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : nullptr;
  return library ? reinterpret_cast<HostLaunch>(dlsym(library, "bf16codecs_host_launch")) : nullptr;
}

}  // namespace

void Stream::add(std::function<void()> work) {
  waiting.push_back(std::move(work));
  ++added;
}

void Stream::run(std::size_t until) {
  while (done < until && !waiting.empty()) {
    auto work = std::move(waiting.front());
    waiting.pop_front();
    work();
    ++done;
  }
}

Machine::Machine() {
  const char* n = std::getenv("BF16CODECS_STAND_IN_DEVICES");
  for (int device = 0; device < (n ? std::atoi(n) : 2); ++device) {
    contexts.push_back(std::make_unique<Context>());
    contexts.back()->device = device;
  }
  if (const char* given = std::getenv("BF16CODECS_STAND_IN_ARCH")) {
    arch = static_cast<unsigned>(std::atoi(given));
  }
}

Machine& machine() {
  static auto* the_machine = new Machine;  // Python frees what it has after exit() has begun
  return *the_machine;
}

std::vector<Context*>& current_contexts() {
  thread_local std::vector<Context*> stack;
  return stack;
}

Context* current() {
  return current_contexts().empty() ? nullptr : current_contexts().back();
}

Result Machine::begin(const char* function) {
  ++calls[function];
  if (failure.countdown == 0 || failure.function != function) return kSuccess;
  return --failure.countdown ? kSuccess : failure.result;
}

Result Machine::wrong(const std::string& what, Result result) {
  misuse = what;
  std::fprintf(stderr, "CUDA stand-in: %s\n", what.c_str());
  return result;
}

std::size_t Machine::used(const Context* context) const {
  std::size_t sum = 0;
  for (const auto& [address, block] : blocks) sum += block.context == context ? block.size : 0;
  return sum;
}

void Machine::expect_empty(const Context* context) {
  bool is_empty = used(context) == 0;
  for (const auto& [handle, stream] : streams) is_empty &= stream->context != context;
  for (const auto& [handle, event] : events) is_empty &= event->context != context;
  if (!is_empty) wrong("a context goes with what was made in it");
}

Result Machine::allocate(std::size_t size, Context* context, Address* address) {
  if (size == 0) return kInvalidValue;
  if (context && size > memory - used(context)) return kOutOfMemory;
  void* start = std::aligned_alloc(kAlignment, round_up(size) + kZone);
  if (!start) return kOutOfMemory;
  std::memset(start, kFresh, size);
  std::memset(static_cast<char*>(start) + size, kZoneByte, round_up(size) - size + kZone);
  *address = reinterpret_cast<Address>(start);
  blocks[*address] = {size, context};
  return kSuccess;
}

Result Machine::free(Address address, bool is_device) {
  const auto found = blocks.find(address);
  if (found == blocks.end()) return wrong("memory is freed that is not allocated");
  const auto [size, context] = found->second;
  if (is_device != (context != nullptr))
    return wrong("memory is freed as if it was of another kind");
  auto* start = reinterpret_cast<unsigned char*>(address);
  bool is_intact = true;
  for (std::size_t i = size; i < round_up(size) + kZone; ++i) is_intact &= start[i] == kZoneByte;
  if (!is_intact) wrong("something was written behind a block of memory");
  // The real one may wait for what is under way, and promises nothing.
  std::memset(start, kFreed, size);
  run_all();
  const bool is_left_alone =
      std::all_of(start, start + size, [](unsigned char byte) { return byte == kFreed; });
  if (!is_left_alone) wrong("memory was freed that was still to be written");
  blocks.erase(found);
  std::free(start);
  return kSuccess;
}

Result Machine::find(Address address, std::size_t size, const Block** block) {
  *block = nullptr;
  auto at = blocks.upper_bound(address);
  if (at == blocks.begin()) return kSuccess;
  const auto& [start, found] = *--at;
  if (address >= start + round_up(found.size) + kZone) return kSuccess;
  if (address + size > start + found.size) {
    return wrong("an operation reaches out of a block of memory");
  }
  *block = &found;
  return kSuccess;
}

Result Machine::stream_of(void* handle, StreamPointer* stream) {
  if (!current()) return kInvalidContext;
  if (reinterpret_cast<Address>(handle) <= 2) {  // 1 and 2 name default streams, too
    *stream = current()->default_stream;
    return kSuccess;
  }
  const auto found = streams.find(handle);
  if (found == streams.end()) return wrong("a stream that is not there", kInvalidHandle);
  if (found->second->context != current()) {
    return wrong("a stream of another context than the current one", kInvalidHandle);
  }
  *stream = found->second;
  return kSuccess;
}

Result Machine::copy(Address to, Address from, std::size_t size, void* handle) {
  StreamPointer stream;
  const Block *target, *source;
  if (Result failed = stream_of(handle, &stream)) return failed;
  if (Result failed = find(to, size, &target)) return failed;
  if (Result failed = find(from, size, &source)) return failed;
  auto* out = reinterpret_cast<void*>(to);
  auto* in = reinterpret_cast<const char*>(from);
  if (source) {
    stream->add([=] { std::memmove(out, in, size); });
    if (!target) stream->run();
  } else {
    stream->add([=, bytes = std::vector<char>(in, in + size)] {
      if (size) std::memcpy(out, bytes.data(), size);
    });
    if (!target) stream->run();
  }
  return kSuccess;
}

Result Machine::fill(Address to, unsigned char value, std::size_t size, void* handle) {
  StreamPointer stream;
  const Block* target;
  if (Result failed = stream_of(handle, &stream)) return failed;
  if (Result failed = find(to, size, &target)) return failed;
  if (!target) return wrong("memory is filled that is not the device's");
  stream->add([=] { std::memset(reinterpret_cast<void*>(to), value, size); });
  return kSuccess;
}

Result Machine::launch(const Kernel& kernel, const LaunchConfig& config, void** arguments) {
  StreamPointer stream;
  if (Result failed = stream_of(config.stream, &stream)) return failed;
  const unsigned threads = config.block[0] * config.block[1] * config.block[2];
  const unsigned blocks_launched = config.grid[0] * config.grid[1] * config.grid[2];
  if (threads == 0 || threads > 1024 || blocks_launched == 0) return kInvalidValue;
  const HostLaunch run = host_launch();
  if (!run) return wrong("BF16CODECS_HOST_KERNELS names no library of kernels", kLaunchFailed);
  const uint32_t warps = blocks_launched * ((threads + 31) / 32);
  std::vector<std::vector<char>> values;
  for (std::size_t i = 0; i < kernel.parameters->size(); ++i) {
    const auto* value = static_cast<const char*>(arguments[i]);
    values.emplace_back(value, value + (*kernel.parameters)[i].size);
  }
  stream->add([=, name = kernel.name]() mutable {
    std::vector<void*> pointers;
    for (auto& value : values) pointers.push_back(value.data());
    run(name.c_str(), warps, pointers.data());
  });
  return kSuccess;
}

void Machine::run_all() {
  for (auto& [handle, stream] : streams) stream->run();
  for (auto& context : contexts) context->default_stream->run();
}

}  // namespace stand_in
