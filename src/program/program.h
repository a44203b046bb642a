// The step as a program: instructions on lanes over buffers in memory tiers, each naming every byte
// range it touches. Data types only, no code: the verifier shares this header and nothing else.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "graph/kernel_abi.h"

namespace spillway {

using BufferId = int32_t;
using InstrId = int32_t;

enum class Tier : uint8_t { device, host };
constexpr int kTierCount = 2;

// The first four are the device's; cpu and io are host threads (runtime/host_lanes.h): copies
// within host memory, and files.
enum class Lane : uint8_t { compute, h2d, d2h, comm, cpu, io };
constexpr int kDeviceLaneCount = 4;
constexpr int kLaneCount = 6;

// value = base + step * iteration; iterations of a segment count from 0.
struct Affine {
  int32_t base = 0, step = 0;
};

enum class Scope : uint8_t {
  run,        // parameters, optimizer state: survives steps
  step,       // gradients, rings: contents do not survive a step
  iteration,  // kept activations and transients
};

// Bytes at one place of one tier. A ring has versions > 1: version v stands at
// offset + v * version_stride.
struct Buffer {
  std::string name;
  std::string place;    // class for reports: "parameters", "moments", "qkv", "workspace", …
  int32_t tensor = -1;  // graph tensor it holds, or -1 (ring, workspace)
  Tier tier = Tier::device;
  Scope scope = Scope::iteration;
  int64_t bytes = 0;  // of one version
  int32_t versions = 1;
  bool pinned_region = true;  // own bytes; false: may share bytes with buffers of disjoint lifetime
};

// A byte range of one version of a buffer: version = affine(iteration) mod versions.
struct Access {
  BufferId buffer = -1;
  Affine version;
  int64_t offset = 0, bytes = 0;
  bool write = false;
};

// A tensor operand of an op or a transfer: where it stands and how a kernel sees it.
struct ProgramOperand {
  BufferId buffer = -1;
  Affine version;
  int64_t offset = 0;
  Dtype dtype = Dtype::f32;
  Dims dims;
  bool accumulate = false;  // written operand that is read as well when the instruction accumulates
  int64_t bytes() const { return dims.count() * size_of(dtype); }
};

// save: reads one f32 operand from either tier and appends it to the file of the save in progress.
enum class InstrKind : uint8_t { op, copy, exchange, save };

// Messages with `count` peers: peer, peer + stride, … Each gets one of `count` equal parts of the
// operand, in that order, or is sent all of it (`same`).
struct ProgramTransfer {
  int32_t peer = 0;
  bool send = false;
  int32_t operand = 0;  // into `in` (send) or `out` (receive)
  int32_t count = 1, stride = 1;
  bool same = false;
  int64_t bytes(const ProgramOperand& whole) const {  // of one message
    return same ? whole.bytes() : whole.bytes() / count;
  }
};

// Wait for the most recently issued instance of instruction `on` (this iteration's or the one
// before); no instance in this run of the program yet: no wait. `on` runs on another lane.
struct Wait {
  InstrId on = -1;
};

struct Instr {
  InstrKind kind = InstrKind::op;
  Lane lane = Lane::compute;
  OpKind op = OpKind::add;
  std::string name;    // "blk.3.qkv.forward", "h2d moments@3"
  int32_t attrs = -1;  // index into Program::attrs (ops)
  bool accumulate = false;
  Affine micro = {0, 0};                // the micro-batch it works for, by iteration
  std::vector<ProgramOperand> in, out;  // ops: in kernel order; copy: one in, one out, same bytes
  ProgramOperand workspace;  // buffer -1: none; of a save from the device: where it passes the host
  std::vector<ProgramTransfer> transfers;
  int32_t sequence = -1;       // exchanges: place in the role's order of communication
  std::vector<Access> access;  // everything it touches, workspace included
  std::vector<Wait> waits;     // written by synchronise only
  uint8_t entry_waits = 0;     // bit l: wait until lane l has finished the program before
  float planned_us = 0;        // by the cost model; also the watchdog's unit
};

// Iterations 0 … trip-1 of instructions [begin, end).
struct Segment {
  std::string name;
  int32_t trip = 1;
  InstrId begin = 0, end = 0;
};

struct Program {
  std::string name;
  std::vector<Attrs> attrs;
  std::vector<Instr> instrs;
  std::vector<Segment> segments;
};

// Programs that share buffers and one layout; any may follow any other.
struct ProgramSet {
  std::vector<Buffer> buffers;
  std::vector<Program> programs;
};

struct ArenaLayout {
  int64_t tier_bytes[kTierCount] = {0, 0};
  std::vector<int64_t> offset;          // by buffer
  std::vector<int64_t> version_stride;  // by buffer; a multiple of 256
};

}  // namespace spillway
