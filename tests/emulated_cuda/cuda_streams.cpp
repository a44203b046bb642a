// The emulated CUDA runtime: streams, events and waits, and the driver's writes of values.
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstring>
#include <memory>

#include "cuda_state.h"
#include "history.h"
#include "memory.h"
#include "pinned.h"
#include "report.h"
#include "scheduler.h"

namespace {

using namespace spillway::emulated;

cudaError_t make_stream(CudaCall& call, cudaStream_t* stream, unsigned flags, int priority) {
  ++allocations().streams;
  *stream = create_stream(!(flags & cudaStreamNonBlocking), priority);
  return *stream ? cudaSuccess : call.fail(cudaErrorMemoryAllocation);
}

cudaError_t make_event(CudaCall& call, cudaEvent_t* event, unsigned flags) {
  if (!call.goes_on()) return call.result();
  ++allocations().events;
  *event = new CUevent_st;
  (*event)->timing = !(flags & cudaEventDisableTiming);
  return cudaSuccess;
}

CUresult write_value_64(CUstream stream, CUdeviceptr to, cuuint64_t value, unsigned) {
  CudaCall call("cuStreamWriteValue64");
  if (!call.goes_on()) return CUDA_ERROR_LAUNCH_FAILED;
  uint64_t* word = static_cast<uint64_t*>(view_of(reinterpret_cast<void*>(to)));
  if (!is_managed(address_of(word)) || address_of(word) % sizeof *word)
    return CUDA_ERROR_INVALID_VALUE;
  Work work;
  work.name = "cuStreamWriteValue64";
  // The host may look at any time: no access in the sense of the checker.
  work.run = [=] { __atomic_store_n(word, value, __ATOMIC_RELEASE); };
  enqueue(stream, std::move(work));
  return CUDA_SUCCESS;
}

}  // namespace

extern "C" {

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority) {
  CudaCall call("cudaStreamCreateWithPriority", CudaCall::Kind::allocates);
  return call.goes_on() ? make_stream(call, stream, flags, priority) : call.result();
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  CudaCall call("cudaStreamCreateWithFlags", CudaCall::Kind::allocates);
  return call.goes_on() ? make_stream(call, stream, flags, 0) : call.result();
}

cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  CudaCall call("cudaStreamCreate", CudaCall::Kind::allocates);
  return call.goes_on() ? make_stream(call, stream, 0, 0) : call.result();
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  CudaCall call("cudaStreamDestroy");
  if (!call.goes_on()) return call.result();
  call.wait_until(drained(stream), "cudaStreamDestroy");
  destroy_stream(stream);
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  CudaCall call("cudaStreamSynchronize");
  if (!call.goes_on()) return call.result();
  CUstream_st* s = stream_of(stream);
  call.wait_until(drained(s), "cudaStreamSynchronize");
  host_learns(s->clock);
  return cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
  CudaCall call("cudaStreamQuery");
  if (!call.goes_on()) return call.result();
  CUstream_st* s = stream_of(stream);
  if (!s->queue.empty()) return cudaErrorNotReady;
  host_learns(s->clock);
  return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize() {
  CudaCall call("cudaDeviceSynchronize");
  if (!call.goes_on()) return call.result();
  call.wait_until(all_idle, "cudaDeviceSynchronize");
  learn_all();
  return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  CudaCall call("cudaStreamWaitEvent");
  if (!call.goes_on()) return call.result();
  if (event->last) {
    enqueue_wait(stream_of(stream), event->last);
  } else {  // legal, and never what was meant
    report("event", nullptr, "cudaStreamWaitEvent on an event that was never recorded");
  }
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  CudaCall call("cudaEventCreateWithFlags", CudaCall::Kind::allocates);
  return make_event(call, event, flags);
}

cudaError_t cudaEventCreate(cudaEvent_t* event) {
  CudaCall call("cudaEventCreate", CudaCall::Kind::allocates);
  return make_event(call, event, cudaEventDefault);
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  CudaCall call("cudaEventDestroy");
  if (!call.goes_on()) return call.result();
  delete event;  // records in flight are kept by what waits for them
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  CudaCall call("cudaEventRecord");
  if (!call.goes_on()) return call.result();
  enqueue_record(stream_of(stream), event);
  return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  CudaCall call("cudaEventSynchronize");
  if (!call.goes_on()) return call.result();
  if (const auto record = event->last) {
    call.wait_until([&] { return record->done; }, "cudaEventSynchronize");
    host_learns(record->clock);
  }
  return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  CudaCall call("cudaEventQuery");
  if (!call.goes_on()) return call.result();
  if (!event->last) return cudaSuccess;
  if (!event->last->done) return cudaErrorNotReady;
  host_learns(event->last->clock);
  return cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t from, cudaEvent_t to) {
  CudaCall call("cudaEventElapsedTime");
  if (!call.goes_on()) return call.result();
  if (!from->timing || !to->timing || !from->last || !to->last)
    return call.fail(cudaErrorInvalidResourceHandle);
  if (!from->last->done || !to->last->done) return cudaErrorNotReady;
  *milliseconds = static_cast<float>(1e3 * (to->last->seconds - from->last->seconds));
  return cudaSuccess;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** entry, unsigned,
                                             unsigned long long,
                                             cudaDriverEntryPointQueryResult* found) {
  CudaCall call("cudaGetDriverEntryPointByVersion");
  if (!call.goes_on()) return call.result();
  const bool known = std::strcmp(symbol, "cuStreamWriteValue64") == 0;
  *entry = known ? reinterpret_cast<void*>(write_value_64) : nullptr;
  if (found) *found = known ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return cudaSuccess;
}

}  // extern "C"
