#include "scheduler.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <mutex>
#include <thread>
#include <vector>

#include "faults.h"
#include "history.h"
#include "nvtx.h"
#include "pinned.h"
#include "random.h"
#include "report.h"

namespace spillway::emulated {
namespace {

using Queued = CUstream_st::Queued;

struct Device {
  Device() {
    const char* set = std::getenv("SPILLWAY_EMULATED_SEED");
    const uint64_t seed = set ? std::strtoull(set, nullptr, 10) : 1;
    random = Random(seed);
    constexpr uint64_t kEagerness[] = {0, 64, 192, 255};  // of 256; lazy … at once
    eagerness = kEagerness[random.below(4)];
    default_stream.actor = kHost + 1;
    default_stream.blocking = true;
    streams = {&default_stream};
  }
  CUstream_st default_stream;
  std::vector<CUstream_st*> streams;
  Clock host;
  Random random{1};
  uint64_t eagerness = 0;
  uint64_t next_id = 1;
  int next_actor = kHost + 2;
  std::mutex lock;
  std::atomic<uint64_t> calls{0};
  bool has_pump = false;
};

Device& device() {
  static Device* const only = new Device;
  return *only;
}

// The legacy default stream and streams that were not created non-blocking wait for each other.
bool default_stream_allows(const CUstream_st& stream) {
  Device& d = device();
  const bool is_default = &stream == &d.default_stream;
  if (!is_default && !stream.blocking) return true;
  for (const CUstream_st* other : d.streams) {
    if (other == &stream || other->queue.empty()) continue;
    if (is_default ? !other->blocking : other != &d.default_stream) continue;
    if (other->queue.front().id < stream.queue.front().id) return false;
  }
  return true;
}

void join_default_stream(CUstream_st& stream) {
  Device& d = device();
  if (&stream == &d.default_stream) {
    for (const CUstream_st* other : d.streams)
      if (other->blocking) stream.clock.join(other->clock);
  } else if (stream.blocking) {
    stream.clock.join(d.default_stream.clock);
  }
}

bool runnable(const CUstream_st& stream) {
  if (stream.queue.empty() || !default_stream_allows(stream)) return false;
  const Work& work = stream.queue.front().work;
  return !work.ready || work.ready();
}

void execute(CUstream_st& stream) {
  Queued queued = std::move(stream.queue.front());
  stream.queue.pop_front();
  stream.clock.join(queued.issue);
  join_default_stream(stream);
  if (queued.traced) {
    const uint32_t count = ++stream.clock.count[stream.actor];
    history::begin(stream.actor, stream.clock, queued.work.name, queued.work.code);
    declared::set_running(queued.work.declared.get());
    queued.work.run();
    declared::set_running(nullptr);
    history::end();
    pinned::executed(queued.id, stream.actor, count);
  } else if (queued.work.run) {
    queued.work.run();
  }
}

// One runnable piece of work, drawn. False: there is none.
bool step() {
  std::vector<CUstream_st*> choices;
  for (CUstream_st* stream : device().streams)
    if (runnable(*stream)) choices.push_back(stream);
  if (choices.empty()) return false;
  execute(*choices[device().random.below(choices.size())]);
  return true;
}

void step_sometimes() {
  Device& d = device();
  while (d.random.below(256) < d.eagerness && step()) {
  }
}

uint64_t put(CUstream_st* stream, Work work, bool traced) {
  Device& d = device();
  Queued queued;
  queued.id = d.next_id++;
  queued.issue = d.host;
  queued.work = std::move(work);
  queued.traced = traced;
  stream->queue.push_back(std::move(queued));
  return queued.id;
}

// A device works on when the host computes or waits for something else.
void pump() {
  Device& d = device();
  constexpr auto kIdle = std::chrono::milliseconds(10);
  uint64_t seen = 0;
  for (;;) {
    std::this_thread::sleep_for(kIdle);
    const uint64_t calls = d.calls;
    if (calls != std::exchange(seen, calls)) continue;
    std::unique_lock lock(d.lock);
    while (d.calls == seen && step()) {
      lock.unlock();  // lets a call of the host in
      lock.lock();
    }
  }
}

}  // namespace

Call::Call(const char* name) {
  Device& d = device();
  ++d.calls;
  d.lock.lock();
  if (!d.has_pump) {
    d.has_pump = true;
    std::thread(pump).detach();
  }
  pinned::protect_again();
  fails_ = faults::strikes(name);
  step_sometimes();
}

Call::~Call() { device().lock.unlock(); }

void Call::wait_until(const std::function<bool()>& done, const char* what) {
  Device& d = device();
  while (!done()) {
    if (step()) continue;
    const bool peers = std::any_of(d.streams.begin(), d.streams.end(), [](CUstream_st* s) {
      return !s->queue.empty() && s->queue.front().work.waits_for_peers;
    });
    if (!peers) give_up(fmt::format("{} waits for ever: no stream can go on", what));
    d.lock.unlock();
    std::this_thread::sleep_for(std::chrono::microseconds(50));
    d.lock.lock();
  }
}

uint64_t enqueue(cudaStream_t handle, Work work) {
  const std::string instruction = nvtx::innermost_range();
  if (!instruction.empty()) work.name = instruction + ": " + work.name;
  work.declared = declared::current();
  return put(stream_of(handle), std::move(work), true);
}

CUstream_st* create_stream(bool blocking, int priority) {
  Device& d = device();
  if (d.next_actor == kMaxActors) return nullptr;
  CUstream_st* stream = new CUstream_st;
  stream->actor = d.next_actor++;
  stream->blocking = blocking;
  stream->priority = priority;
  d.streams.push_back(stream);
  return stream;
}

void destroy_stream(CUstream_st* stream) {
  while (!stream->queue.empty() && step()) {
  }
  std::erase(device().streams, stream);
  delete stream;
}

CUstream_st* stream_of(cudaStream_t handle) {
  return handle == nullptr || handle == cudaStreamLegacy ? &device().default_stream : handle;
}

bool all_idle() {
  return std::all_of(device().streams.begin(), device().streams.end(),
                     [](CUstream_st* s) { return s->queue.empty(); });
}

void enqueue_record(CUstream_st* stream, CUevent_st* event) {
  auto record = std::make_shared<CUevent_st::Record>();
  event->last = record;
  Work work;
  work.name = "cudaEventRecord";
  work.run = [record, stream] {
    record->done = true;
    record->seconds = now_seconds();
    record->clock = stream->clock;
  };
  put(stream, std::move(work), false);
}

void enqueue_wait(CUstream_st* stream, std::shared_ptr<CUevent_st::Record> record) {
  Work work;
  work.name = "cudaStreamWaitEvent";
  work.ready = [record] { return record->done; };
  work.run = [record, stream] { stream->clock.join(record->clock); };
  put(stream, std::move(work), false);
}

Clock& host_clock() { return device().host; }

void host_learns(const Clock& clock) {
  device().host.join(clock);
  pinned::release(device().host);
}

void learn_all() {
  for (const CUstream_st* stream : device().streams) device().host.join(stream->clock);
  pinned::release(device().host);
}

uint64_t draw_seed() { return device().random.next(); }

double now_seconds() {
  using namespace std::chrono;
  return duration<double>(steady_clock::now().time_since_epoch()).count();
}

std::function<bool()> drained(CUstream_st* stream) {
  const uint64_t last = stream->queue.empty() ? 0 : stream->queue.back().id;
  return [stream, last] { return stream->queue.empty() || stream->queue.front().id > last; };
}

}  // namespace spillway::emulated
