// What a backend is. One per process; its memory is one arena a tier, reserved once.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>

#include "graph/kernel_abi.h"
#include "program/program.h"

namespace spillway {

// Position of an instruction on its lane: 1 for the first ever issued there. Lanes run in order, so
// "lane l has reached ticket t" is an event.
using Ticket = uint64_t;

// One executed instruction, in seconds. Zero is the device's choice, the same for all that was
// issued since synchronise_all returned last.
struct LaneTimes {
  double begin = 0, end = 0;
  double waited = 0;  // of begin - lane's previous end: time spent waiting for other lanes
};

class Device {
 public:
  virtual ~Device() = default;

  // Start-up, in this order: connect, warm_up, reserve, then the first launch. `connect` is
  // collective over the ranks: communicators, and one call of each kind. `warm_up` runs everything
  // that loads code or allocates inside libraries once, so that foreign_bytes() is final.
  virtual void connect(const ProgramSet&) {}
  virtual void warm_up(const ProgramSet&, const ArenaLayout&) {}

  // Once a tier, before the first launch. At least 256-byte aligned and backed by huge pages; the
  // last byte (rounded up to 256) stands against a guard, so that an overrun faults. Throws
  // Error(does_not_fit) naming tier, bytes and limit.
  virtual void* reserve(Tier tier, int64_t bytes) = 0;

  // All asynchronous, in order on their lane; none allocates; all from one issuing thread, which
  // blocks while a lane's bounded queue is full. `args` are copied. Each returns its ticket. After
  // a lane has thrown, what is left in all lanes is skipped.
  virtual Ticket launch(Lane lane, OpKind op, const KernelArgs& args, const Instr* instr) = 0;
  virtual Ticket copy(Lane lane, void* to, const void* from, int64_t bytes, const Instr* instr) = 0;
  virtual Ticket exchange(Lane lane, const struct ExchangeArgs& args, const Instr* instr) = 0;
  // Fills bytes of an arena, at the start or in tests that poison what is dead. Not part of a
  // program.
  virtual Ticket fill(Lane lane, void* to, uint8_t value, int64_t bytes) = 0;
  // The newest ticket of `lane` will be waited for. Only a hint: any ticket may be waited for, but
  // one that was not announced may be reached later than need be.
  virtual void signal(Lane) {}
  // What `lane` is given next starts only when `on` has reached `ticket`.
  virtual void wait(Lane lane, Lane on, Ticket ticket) = 0;

  // Blocks the caller. Rethrows what a lane threw first, as an Error that names lane and
  // instruction.
  virtual void synchronise(Lane lane, Ticket ticket) = 0;
  virtual void synchronise_all() = 0;

  // Blocking transfers between memory of the host and an arena, outside every lane's order.
  // `upload` only with all lanes idle; `download` from any one thread, as long as no lane writes
  // the bytes meanwhile (a save reads states while the next step runs).
  virtual void upload(void* to, const void* from, int64_t bytes) = 0;
  virtual void download(void* to, const void* from, int64_t bytes) = 0;

  // Progress words; never block, any thread. `running` is the instruction a lane executes now, or
  // nullptr.
  virtual Ticket completed(Lane lane) const = 0;
  virtual const Instr* running(Lane lane) const = 0;

  // Bytes moved by the copy lanes since start, counted where they are moved.
  virtual int64_t bytes_copied(Lane lane) const = 0;

  // LaneTimes of every instruction issued while `sink` is set are given to
  // `sink(context, lane, instr, times)`, on the lane's thread or, at the latest, before
  // synchronise_all returns; nullptr ends it. `context` stays valid until what was issued has run.
  // A device where taking times has a price leaves out what `what` does not ask for.
  using TimeSink = void (*)(void* context, Lane, const Instr*, const LaneTimes&);
  enum class Timed { waits, all };  // compute instructions that wait for other lanes; everything
  virtual void record_times(TimeSink sink, void* context, Timed what = Timed::all) = 0;

  // Bytes of device memory in use beside the arena, by this process and others (driver, libraries,
  // kernels); 0 where device memory is host memory. Lanes idle.
  virtual int64_t foreign_bytes() const { return 0; }
  // For messages of errors: the step that what is issued next belongs to.
  virtual void enter_step(int64_t) {}
  // Errors that show only when asked for, such as a peer's failure; "" if there are none. Any
  // thread, never blocks. After one, what blocks in the device ends with an Error.
  virtual std::string poll() const { return ""; }

  virtual std::string description() const { return ""; }  // "cpu (avx512)", for the user
  // What makes bits differ between devices, for checkpoints.
  virtual std::map<std::string, std::string> fingerprint() const { return {}; }
  // GEMM algorithms in use, JSON text for the checkpoint; "" if the device does not choose any.
  virtual std::string gemm_algorithms() const { return ""; }
};

struct ExchangeArgs {
  static constexpr int kMax = 4096;  // messages to, and from, one peer
  // Messages of `bytes` with `count` peers: peer, peer + stride, …; the k-th starts at data + k ·
  // step.
  struct Part {
    int32_t peer;
    bool send;
    void* data;
    int64_t bytes;
    int32_t count = 1, stride = 1;
    int64_t step = 0;

    int64_t extent() const { return (count - 1) * step + bytes; }  // bytes from `data` on
    template <class Visit>
    void each(Visit&& visit) const {  // visit(peer, data)
      for (int32_t k = 0; k < count; ++k)
        visit(peer + k * stride, static_cast<char*>(data) + k * step);
    }
  };
  std::span<const Part> parts;  // valid until the exchange has run
  int32_t sequence = 0;
};

// Moves bytes between ranks, never adds. All ranks call in the same order.
class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual int ranks_on_node() const = 0;
  virtual int node_count() const = 0;
  // Place among the ranks of this node, 0 … ranks_on_node() - 1.
  virtual int rank_on_node() const { return rank() % ranks_on_node(); }
  // One grouped batch of sends and receives; blocks the calling (lane) thread; returns early with
  // an Error(no_progress) once aborted. The k-th send to a peer meets its k-th receive from here.
  virtual void exchange(const ExchangeArgs& args) = 0;
  // Host-side helpers for start-up, checkpoints and agreement; blocking, main thread only.
  virtual void barrier() = 0;
  virtual void broadcast(void* data, int64_t bytes, int root) = 0;
  virtual std::string broadcast_text(const std::string& text, int root) = 0;
  virtual int64_t max(int64_t value) = 0;
  virtual int64_t min(int64_t value) = 0;
  virtual std::string gather_text(const std::string& text) = 0;  // rank 0: lines joined; else ""
  virtual void gather(const void* data, int64_t bytes, void* out) = 0;  // all ranks; rank order
  // From any thread: what blocks in here, now or later, throws. The process then ends without
  // waiting for its peers.
  virtual void abort() noexcept = 0;
};

}  // namespace spillway
