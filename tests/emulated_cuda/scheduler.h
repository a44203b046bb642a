// Streams and events, and the choice of what runs next. One lock guards all state of the emulated
// device; whoever holds it may execute work, so that "the device" runs inside the calls of the host
// and, if the host makes none for a while, on a thread of its own.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>

#include "clock.h"
#include "runtime.h"

struct CUstream_st {
  int actor = 0;
  bool blocking = false;  // ordered against the legacy default stream
  int priority = 0;
  spillway::emulated::Clock clock;
  struct Queued {
    uint64_t id = 0;
    spillway::emulated::Clock issue;  // what the host knew
    spillway::emulated::Work work;
    bool traced = true;  // false: bookkeeping, no work of its own
  };
  std::deque<Queued> queue;
};

struct CUevent_st {
  struct Record {  // one cudaEventRecord
    bool done = false;
    double seconds = 0;
    spillway::emulated::Clock clock;
  };
  std::shared_ptr<Record> last;
  bool timing = true;
};

namespace spillway::emulated {

CUstream_st* create_stream(bool blocking, int priority);  // nullptr: too many
void destroy_stream(CUstream_st* stream);                 // what is queued still runs
CUstream_st* stream_of(cudaStream_t handle);              // nullptr is the default stream
bool all_idle();

// Work without accesses that changes the stream's knowledge.
void enqueue_record(CUstream_st* stream, CUevent_st* event);
void enqueue_wait(CUstream_st* stream, std::shared_ptr<CUevent_st::Record> record);

// What the host has waited for; its accesses to pinned memory are judged by this.
Clock& host_clock();
void host_learns(const Clock& clock);
void learn_all();  // of every stream

uint64_t draw_seed();  // of a launch
double now_seconds();

// What is queued now on this stream has run.
std::function<bool()> drained(CUstream_st* stream);

}  // namespace spillway::emulated
