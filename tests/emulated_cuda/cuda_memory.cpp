// The emulated CUDA runtime: memory, copies and fills.
#include <cuda_runtime_api.h>

#include <cstring>
#include <memory>
#include <vector>

#include "cuda_state.h"
#include "faults.h"
#include "history.h"
#include "memory.h"
#include "pinned.h"
#include "report.h"
#include "scheduler.h"

namespace {

using namespace spillway::emulated;

int64_t foreign_bytes_now() {
  static int64_t grown = 0;
  return faults::limits().foreign_bytes + grown++ * faults::limits().foreign_growth;
}

enum class Memory { device, pinned, pageable };

Memory memory_of(const void* p) {
  if (is_managed(address_of(p))) return is_device(address_of(p)) ? Memory::device : Memory::pinned;
  return pinned::view_of(address_of(p)) ? Memory::pinned : Memory::pageable;
}

bool fits(cudaMemcpyKind kind, Memory to, Memory from) {
  const bool to_device = to == Memory::device, from_device = from == Memory::device;
  switch (kind) {
    case cudaMemcpyHostToHost:
      return !to_device && !from_device;
    case cudaMemcpyHostToDevice:
      return to_device && !from_device;
    case cudaMemcpyDeviceToHost:
      return !to_device && from_device;
    case cudaMemcpyDeviceToDevice:
      return to_device && from_device;
    case cudaMemcpyDefault:
      return true;
  }
  return false;
}

uint64_t hash_of(const void* p, size_t bytes) {  // FNV-1a over words
  uint64_t hash = 0xCBF29CE484222325u;
  const auto* byte = static_cast<const unsigned char*>(p);
  for (; bytes >= 8; bytes -= 8, byte += 8) {
    uint64_t word;
    std::memcpy(&word, byte, 8);
    hash = (hash ^ word) * 0x100000001B3u;
  }
  for (; bytes > 0; --bytes) hash = (hash ^ *byte++) * 0x100000001B3u;
  return hash;
}

// Keeps the host off pinned memory that work uses.
void guard(uint64_t id, const void* p, size_t bytes, bool writes, cudaStream_t stream) {
  if (is_managed(address_of(p)) || !pinned::view_of(address_of(p))) return;
  pinned::issued(id, address_of(p), bytes, writes, stream_of(stream)->queue.back().work.name);
}

cudaError_t enqueue_copy(CudaCall& call, void* to, const void* from, size_t bytes,
                         cudaMemcpyKind kind, cudaStream_t stream) {
  const Memory target = memory_of(to), source = memory_of(from);
  if (!fits(kind, target, source)) {
    report("copy", nullptr, "a copy of kind {} from {} to {}", static_cast<int>(kind), from, to);
    return call.fail(cudaErrorInvalidValue);
  }
  if (bytes == 0) return cudaSuccess;
  Work work;
  work.name = fmt::format("copy of {} bytes", bytes);
  if (source == Memory::pageable) {  // staged before the call returns
    auto staged = std::make_shared<std::vector<unsigned char>>(
        static_cast<const unsigned char*>(from), static_cast<const unsigned char*>(from) + bytes);
    work.run = [=] { copy(to, staged->data(), bytes); };
    enqueue(stream, std::move(work));
  } else {
    const bool watched =
        source == Memory::pinned && !pinned::being_written(address_of(from), bytes);
    const uint64_t before = watched ? hash_of(view_of(from), bytes) : 0;
    work.run = [=] {
      if (watched && hash_of(view_of(from), bytes) != before)
        report("pinned buffer in flight", nullptr,
               "the {} bytes at {} changed after '{}', which reads them, was issued", bytes, from,
               history::current_name());
      copy(to, from, bytes);
    };
    const uint64_t id = enqueue(stream, std::move(work));
    guard(id, from, bytes, false, stream);
    guard(id, to, bytes, true, stream);
  }
  if (target == Memory::pageable) {  // has happened when the call returns
    CUstream_st* s = stream_of(stream);
    call.wait_until(drained(s), "a copy to pageable memory");
    host_learns(s->clock);
  }
  return cudaSuccess;
}

cudaError_t enqueue_fill(CudaCall& call, void* to, int value, size_t bytes, cudaStream_t stream) {
  if (memory_of(to) == Memory::pageable) {
    report("fill", nullptr, "a fill of {}, which is pageable memory", to);
    return call.fail(cudaErrorInvalidValue);
  }
  Work work;
  work.name = fmt::format("fill of {} bytes", bytes);
  work.run = [=] {
    writes(to, bytes);
    std::memset(view_of(to), value, bytes);
  };
  const uint64_t id = enqueue(stream, std::move(work));
  guard(id, to, bytes, true, stream);
  return cudaSuccess;
}

}  // namespace

extern "C" {

cudaError_t cudaMalloc(void** p, size_t bytes) {
  CudaCall call("cudaMalloc", CudaCall::Kind::allocates);
  if (!call.goes_on()) return call.result();
  ++allocations().device;
  const auto size = static_cast<int64_t>(bytes);
  const faults::Limits& limits = faults::limits();
  if (size > limits.device_bytes - limits.foreign_bytes - device_bytes_in_use())
    return call.fail(cudaErrorMemoryAllocation);
  *p = allocate_device(bytes);
  if (!*p) return call.fail(cudaErrorMemoryAllocation);
  device_bytes_in_use() += size;
  return cudaSuccess;
}

cudaError_t cudaFree(void* p) {
  CudaCall call("cudaFree");
  if (!call.goes_on()) return call.result();
  if (!p) return cudaSuccess;
  const Allocation* freed = is_device(address_of(p)) ? allocation_near(address_of(p)) : nullptr;
  if (!freed || freed->begin != address_of(p) || freed->freed) {
    report("free", nullptr, "cudaFree of {}: {}", p, describe_address(address_of(p)));
    return call.fail(cudaErrorInvalidValue);
  }
  call.wait_until(all_idle, "cudaFree");  // as the real one does
  device_bytes_in_use() -= static_cast<int64_t>(freed->bytes);
  history::forget(freed->begin, freed->bytes);
  release(p);
  return cudaSuccess;
}

cudaError_t cudaHostAlloc(void** p, size_t bytes, unsigned) {
  CudaCall call("cudaHostAlloc", CudaCall::Kind::allocates);
  if (!call.goes_on()) return call.result();
  ++allocations().pinned;
  if (pinned::bytes_in_use() + static_cast<int64_t>(bytes) > faults::limits().pinned_bytes)
    return call.fail(cudaErrorMemoryAllocation);
  *p = pinned::allocate(bytes);
  return *p ? cudaSuccess : call.fail(cudaErrorMemoryAllocation);
}

cudaError_t cudaMallocHost(void** p, size_t bytes) { return cudaHostAlloc(p, bytes, 0); }

cudaError_t cudaFreeHost(void* p) {
  CudaCall call("cudaFreeHost");
  if (!call.goes_on()) return call.result();
  if (!p) return cudaSuccess;
  return pinned::free(p) ? cudaSuccess : call.fail(cudaErrorInvalidValue);
}

cudaError_t cudaHostRegister(void* p, size_t bytes, unsigned) {
  CudaCall call("cudaHostRegister", CudaCall::Kind::allocates);
  if (!call.goes_on()) return call.result();
  ++allocations().pinned;
  if (pinned::bytes_in_use() + static_cast<int64_t>(bytes) > faults::limits().pinned_bytes)
    return call.fail(cudaErrorMemoryAllocation);
  return pinned::enroll(p, bytes) ? cudaSuccess : call.fail(cudaErrorInvalidValue);
}

cudaError_t cudaHostUnregister(void* p) {
  CudaCall call("cudaHostUnregister");
  if (!call.goes_on()) return call.result();
  return pinned::withdraw(p) ? cudaSuccess : call.fail(cudaErrorHostMemoryNotRegistered);
}

cudaError_t cudaHostGetDevicePointer(void** device, void* host, unsigned) {
  CudaCall call("cudaHostGetDevicePointer");
  if (!call.goes_on()) return call.result();
  const uintptr_t view = pinned::view_of(address_of(host));
  *device = reinterpret_cast<void*>(view);
  return view ? cudaSuccess : call.fail(cudaErrorInvalidValue);
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* p) {
  CudaCall call("cudaPointerGetAttributes");
  if (!call.goes_on()) return call.result();
  *attributes = {};
  const Memory memory = memory_of(p);
  attributes->type = memory == Memory::device   ? cudaMemoryTypeDevice
                     : memory == Memory::pinned ? cudaMemoryTypeHost
                                                : cudaMemoryTypeUnregistered;
  if (memory == Memory::device) attributes->devicePointer = const_cast<void*>(p);
  if (memory == Memory::pinned) attributes->hostPointer = const_cast<void*>(p);
  return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  CudaCall call("cudaMemGetInfo");
  if (!call.goes_on()) return call.result();
  *total = static_cast<size_t>(faults::limits().device_bytes);
  const int64_t used = device_bytes_in_use() + foreign_bytes_now();
  *free = static_cast<size_t>(std::max<int64_t>(0, faults::limits().device_bytes - used));
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  CudaCall call("cudaMemcpyAsync");
  if (!call.goes_on()) return call.result();
  return enqueue_copy(call, to, from, bytes, kind, stream);
}

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  CudaCall call("cudaMemcpy");
  if (!call.goes_on()) return call.result();
  const cudaError_t error = enqueue_copy(call, to, from, bytes, kind, nullptr);
  if (error != cudaSuccess) return error;
  CUstream_st* stream = stream_of(nullptr);
  call.wait_until(drained(stream), "cudaMemcpy");
  host_learns(stream->clock);
  return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream) {
  CudaCall call("cudaMemsetAsync");
  if (!call.goes_on()) return call.result();
  return enqueue_fill(call, to, value, bytes, stream);
}

cudaError_t cudaMemset(void* to, int value, size_t bytes) {
  CudaCall call("cudaMemset");
  if (!call.goes_on()) return call.result();
  return enqueue_fill(call, to, value, bytes, nullptr);
}

}  // extern "C"
