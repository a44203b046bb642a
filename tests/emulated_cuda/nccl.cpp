// The emulated NCCL: grouped sends and receives between processes, as work on streams that meets
// its counterparts. A group ends on a rank when its peers have taken what it sent, so a program
// that would deadlock without buffers does so here. Reports messages whose sizes or instructions
// differ at their two ends, and ranges of one group that overlap.
#include <nccl.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "faults.h"
#include "nccl_ranks.h"
#include "nvtx.h"
#include "report.h"
#include "runtime.h"
#include "scheduler.h"

namespace {

using namespace spillway::emulated;

constexpr double kJoinSeconds = 60;

// With nothing wrong that shows: a wait for a message that never comes.
double patience() {
  const char* set = std::getenv("SPILLWAY_EMULATED_PATIENCE");
  return set ? std::atof(set) : 120;
}

struct Communicator {
  std::unique_ptr<Ranks> ranks;
  std::atomic<ncclResult_t> error{ncclSuccess};
  std::atomic<bool> aborted{false};
  uint64_t issued = 0, finished = 0;  // groups
  std::string last_error;

  void set_error(ncclResult_t result, const std::string& text) {
    if (error != ncclSuccess) return;
    last_error = text;
    error = result;
  }
};

struct Part {
  bool send = false;
  int peer = 0;
  char* data = nullptr;
  size_t bytes = 0;
  ncclDataType_t type = ncclUint8;
  uint64_t turn = 0;  // of a send: its place in the queue
};

struct Group {
  std::shared_ptr<Communicator> comm;
  cudaStream_t stream = nullptr;
  uint64_t turn = 0;
  std::string instruction;
  std::vector<Part> parts;
  double waits_since = 0;
};

struct Pending {
  int depth = 0;
  std::vector<std::pair<std::shared_ptr<Communicator>, cudaStream_t>> where;
  std::vector<Part> parts;
};
thread_local Pending pending;

size_t size_of(ncclDataType_t type) {
  switch (type) {
    case ncclInt8:
    case ncclUint8:
      return 1;
    case ncclFloat16:
    case ncclBfloat16:
      return 2;
    case ncclInt64:
    case ncclUint64:
    case ncclFloat64:
      return 8;
    default:
      return 4;
  }
}

std::string named(const std::string& instruction) {
  return instruction.empty() ? "an exchange" : "'" + instruction + "'";
}

// Whether the group can go on: `there` for every part that it waits for. A wait that cannot end is
// an error of the communicator, as NCCL finds it, and lasts until the communicator is aborted.
template <class There>
bool may_go_on(Group& group, bool of_sends, There&& there) {
  Communicator& comm = *group.comm;
  if (comm.aborted) return true;
  if (comm.error != ncclSuccess) return false;
  for (const Part& part : group.parts) {
    if (part.send != of_sends || there(part)) continue;
    const char* waits = part.send ? "has not taken its message" : "has not sent its message";
    const RankState peer = comm.ranks->state(part.peer);
    if (peer == RankState::left)
      report("collective", nullptr,
             "rank {}: {}: rank {} {} of {} bytes and destroyed its communicator",
             comm.ranks->rank(), named(group.instruction), part.peer, waits, part.bytes);
    if (peer != RankState::live && peer != RankState::absent)
      comm.set_error(ncclRemoteError, fmt::format("rank {} {}: {} of {}", part.peer,
                                                  peer == RankState::died   ? "has died"
                                                  : peer == RankState::left ? "has left"
                                                                            : "has aborted",
                                                  waits, named(group.instruction)));
    if (group.waits_since == 0) group.waits_since = now_seconds();
    if (now_seconds() - group.waits_since > patience())
      give_up(fmt::format("rank {}: {}: rank {} {} of {} bytes for {} s", comm.ranks->rank(),
                          named(group.instruction), part.peer, waits, part.bytes, patience()));
    return false;
  }
  return true;
}

void post(Group& group) {
  Communicator& comm = *group.comm;
  if (faults::strikes("ncclAsyncError"))
    comm.set_error(ncclSystemError, "an asynchronous error that the environment asked for");
  if (comm.aborted || comm.error != ncclSuccess) return;
  const int own = comm.ranks->rank();
  size_t used = 0;
  for (Part& part : group.parts) {
    if (!part.send) continue;
    Queue& queue = comm.ranks->queue(own, part.peer);
    if (used + part.bytes > kOutboxBytes || queue.posted - queue.taken == kMessages)
      give_up("more bytes or messages in one group than the emulated NCCL holds");
    reads(part.data, part.bytes);
    std::memcpy(comm.ranks->outbox(own) + used, view_of(part.data), part.bytes);
    Message& message = queue.at(queue.posted);
    message.offset = used;
    message.bytes = part.bytes;
    message.type = part.type;
    std::strncpy(message.instruction, group.instruction.c_str(), sizeof message.instruction - 1);
    message.instruction[sizeof message.instruction - 1] = 0;
    part.turn = queue.posted++;
    used += (part.bytes + 15) / 16 * 16;
  }
}

void take(Group& group) {
  Communicator& comm = *group.comm;
  if (comm.aborted) return;
  const int own = comm.ranks->rank();
  for (const Part& part : group.parts) {
    if (part.send) continue;
    Queue& queue = comm.ranks->queue(part.peer, own);
    const Message& message = queue.at(queue.taken);
    const std::string theirs(message.instruction);
    const std::string ours = group.instruction.substr(0, sizeof message.instruction - 1);
    if (message.bytes != part.bytes || message.type != part.type)
      report("collective", nullptr,
             "rank {}: {} receives {} bytes of type {} from rank {}, which sends {} of type {} in "
             "{}",
             own, named(ours), part.bytes, static_cast<int>(part.type), part.peer, message.bytes,
             message.type, named(theirs));
    else if (!ours.empty() && !theirs.empty() && ours != theirs)
      report("collective", nullptr, "rank {}: {} receives what rank {} sends in {}", own,
             named(ours), part.peer, named(theirs));
    const size_t bytes = std::min<size_t>(message.bytes, part.bytes);
    writes(part.data, bytes);
    std::memcpy(view_of(part.data), comm.ranks->outbox(part.peer) + message.offset, bytes);
    ++queue.taken;
  }
}

void report_overlaps(const Group& group) {
  for (size_t i = 0; i < group.parts.size(); ++i)
    for (size_t j = i + 1; j < group.parts.size(); ++j) {
      const Part &a = group.parts[i], &b = group.parts[j];
      if (a.send && b.send) continue;
      if (a.data < b.data + b.bytes && b.data < a.data + a.bytes)
        report("race", nullptr,
               "{}: two parts of one group overlap, one with rank {} and one with {}",
               named(group.instruction), a.peer, b.peer);
    }
}

void enqueue(const std::shared_ptr<Group>& group) {
  Communicator& comm = *group->comm;
  report_overlaps(*group);
  const auto put = [&](const char* what, std::function<bool()> ready, std::function<void()> run) {
    Work work;
    work.name = fmt::format("NCCL group {} {}", group->turn + 1, what);
    work.ready = std::move(ready);
    work.run = std::move(run);
    work.waits_for_peers = true;
    spillway::emulated::enqueue(group->stream, std::move(work));
  };
  // Groups of a communicator run in the order of their issue, on whatever streams they are.
  put(
      "sends", [group, &comm] { return comm.aborted || comm.finished == group->turn; },
      [group] { post(*group); });
  put(
      "receives",
      [group] {
        const Communicator& c = *group->comm;
        std::vector<uint64_t> wanted(static_cast<size_t>(c.ranks->size()));
        return may_go_on(*group, false, [&](const Part& part) {
          Queue& queue = c.ranks->queue(part.peer, c.ranks->rank());
          return queue.posted - queue.taken > wanted[static_cast<size_t>(part.peer)]++;
        });
      },
      [group] { take(*group); });
  put(
      "ends",
      [group] {
        const Communicator& c = *group->comm;
        return may_go_on(*group, true, [&](const Part& part) {
          return c.ranks->queue(c.ranks->rank(), part.peer).taken > part.turn;
        });
      },
      [group] { ++group->comm->finished; });
}

// All that was gathered since the outermost ncclGroupStart.
ncclResult_t flush() {
  Pending now = std::exchange(pending, {});
  if (now.parts.empty()) return ncclSuccess;
  auto group = std::make_shared<Group>();
  group->comm = now.where[0].first;
  group->stream = now.where[0].second;
  for (const auto& [comm, stream] : now.where)
    if (comm != group->comm || stream != group->stream)
      give_up("one NCCL group with several communicators or streams: not emulated");
  if (group->comm->error != ncclSuccess) return group->comm->error;
  group->parts = std::move(now.parts);
  group->turn = group->comm->issued++;
  group->instruction = nvtx::innermost_range();
  enqueue(group);
  return ncclSuccess;
}

std::shared_ptr<Communicator>& held(ncclComm_t comm) {
  return *reinterpret_cast<std::shared_ptr<Communicator>*>(comm);
}

ncclResult_t add(const char* name, bool send, const void* data, size_t count, ncclDataType_t type,
                 int peer, ncclComm_t comm, cudaStream_t stream) {
  const Call call(name);
  if (call.fails()) return ncclUnhandledCudaError;
  if (!comm || !data || peer < 0 || peer >= held(comm)->ranks->size()) return ncclInvalidArgument;
  if (held(comm)->error != ncclSuccess) return held(comm)->error;
  if (count > 0) {
    pending.where.emplace_back(held(comm), stream);
    pending.parts.push_back(
        {send, peer, static_cast<char*>(const_cast<void*>(data)), count * size_of(type), type});
  }
  return pending.depth == 0 ? flush() : ncclSuccess;
}

// Until all ranks have joined, or one is lost.
ncclResult_t meet(const Ranks& ranks) {
  const double since = now_seconds();
  for (int r = 0; r < ranks.size(); ++r)
    while (ranks.state(r) == RankState::absent) {
      for (int other = 0; other < ranks.size(); ++other)
        if (ranks.state(other) == RankState::died) return ncclRemoteError;
      if (now_seconds() - since > kJoinSeconds) return ncclSystemError;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  return ncclSuccess;
}

}  // namespace

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSuccess:
      return "no error";
    case ncclUnhandledCudaError:
      return "unhandled cuda error";
    case ncclSystemError:
      return "unhandled system error";
    case ncclInvalidArgument:
      return "invalid argument";
    case ncclRemoteError:
      return "remote process exited or there was a network error";
    default:
      return "internal error";
  }
}

const char* ncclGetLastError(ncclComm_t comm) { return comm ? held(comm)->last_error.c_str() : ""; }

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  const Call call("ncclGetUniqueId");
  if (call.fails()) return ncclSystemError;
  Ranks::Address address;
  static_assert(sizeof address <= sizeof id->internal);
  std::memset(id, 0, sizeof *id);
  if (!Ranks::create(address)) return ncclSystemError;
  std::memcpy(id->internal, &address, sizeof address);
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int size, ncclUniqueId id, int rank,
                                    ncclConfig_t*) {
  {
    const Call call("ncclCommInitRankConfig");
    if (call.fails()) return ncclSystemError;
  }
  Ranks::Address address;
  std::memcpy(&address, id.internal, sizeof address);
  std::unique_ptr<Ranks> ranks(Ranks::join(address, rank, size));
  if (!ranks) return ncclInvalidArgument;
  if (const ncclResult_t result = meet(*ranks); result != ncclSuccess) return result;
  const auto made = std::make_shared<Communicator>();
  made->ranks = std::move(ranks);
  *comm = reinterpret_cast<ncclComm_t>(new std::shared_ptr<Communicator>(made));
  return ncclSuccess;
}

ncclResult_t ncclCommInitRank(ncclComm_t* comm, int size, ncclUniqueId id, int rank) {
  return ncclCommInitRankConfig(comm, size, id, rank, nullptr);
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  Call call("ncclCommDestroy");
  if (call.fails()) return ncclUnhandledCudaError;
  Communicator& c = *held(comm);
  call.wait_until([&] { return c.finished == c.issued || c.error != ncclSuccess; },
                  "ncclCommDestroy");
  c.aborted = true;
  c.ranks->declare(c.error == ncclSuccess ? RankState::left : RankState::aborted);
  delete &held(comm);
  return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  const Call call("ncclCommAbort");
  if (call.fails()) return ncclUnhandledCudaError;
  held(comm)->aborted = true;
  held(comm)->ranks->declare(RankState::aborted);
  delete &held(comm);
  return ncclSuccess;
}

// Takes no lock: it is polled while calls on other threads wait.
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
  *error = held(comm)->error;
  return ncclSuccess;
}

ncclResult_t ncclCommCount(const ncclComm_t comm, int* count) {
  *count = held(comm)->ranks->size();
  return ncclSuccess;
}

ncclResult_t ncclCommUserRank(const ncclComm_t comm, int* rank) {
  *rank = held(comm)->ranks->rank();
  return ncclSuccess;
}

ncclResult_t ncclGroupStart() {
  const Call call("ncclGroupStart");
  if (call.fails()) return ncclInternalError;
  ++pending.depth;
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  const Call call("ncclGroupEnd");
  if (call.fails()) return ncclInternalError;
  if (pending.depth == 0) return ncclInvalidUsage;
  return --pending.depth == 0 ? flush() : ncclSuccess;
}

ncclResult_t ncclSend(const void* data, size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t stream) {
  return add("ncclSend", true, data, count, type, peer, comm, stream);
}

ncclResult_t ncclRecv(void* data, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return add("ncclRecv", false, data, count, type, peer, comm, stream);
}

}  // extern "C"
