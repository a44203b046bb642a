// Start-up of the CUDA device: everything that allocates inside the driver and the libraries is
// done once, before the arena takes what is left of the memory.
#include <algorithm>
#include <cstring>
#include <map>
#include <set>

#include "base/hash.h"
#include "runtime/cuda/cuda_device.h"

namespace spillway::cuda {
namespace {

constexpr int64_t kAlign = 256;
constexpr int64_t kLargestWarmUp = int64_t{64} << 20;  // bytes exchanged with each peer
constexpr int64_t kWarmUpMemory = int64_t{1} << 30;    // of all peers

// Operands of one instruction packed into scratch: each buffer's bytes keep their distance from
// each other and from a 256-byte border, since kernels choose their accesses by alignment.
struct Packed {
  KernelArgs args;
  int64_t bytes = 0;
  uint64_t key = 0;  // equal for instructions that run the same code
};

Packed packed(const Program& program, const Instr& instr, const ArenaLayout& layout,
              char* scratch) {
  struct Stretch {
    int64_t begin = INT64_MAX, end = 0, at = 0;
  };
  std::map<BufferId, Stretch> stretches;
  const auto extend = [&](const ProgramOperand& o) {
    Stretch& s = stretches[o.buffer];
    s.begin = std::min(s.begin, o.offset);
    s.end = std::max(s.end, o.offset + o.bytes());
  };
  for (const ProgramOperand& o : instr.in) extend(o);
  for (const ProgramOperand& o : instr.out) extend(o);
  if (instr.workspace.buffer >= 0) extend(instr.workspace);
  Packed p;
  for (auto& [buffer, s] : stretches) {
    s.at = round_up(p.bytes, kAlign) + (layout.offset[buffer] + s.begin) % kAlign;
    p.bytes = s.at + (s.end - s.begin);
  }
  Hasher h;
  const auto operand = [&](const ProgramOperand& o) {
    const Stretch& s = stretches.at(o.buffer);
    const int64_t at = s.at + o.offset - s.begin;
    h.value(at % kAlign);
    h.value(o.dtype);
    for (const int64_t d : o.dims.d) h.value(d);
    return TensorArg{scratch + at, o.dtype, o.dims};
  };
  h.value(instr.op);
  h.value(instr.accumulate);
  const Attrs& attrs = program.attrs[instr.attrs];
  h.bytes(&attrs, sizeof attrs);
  for (const ProgramOperand& o : instr.in) p.args.in[p.args.in_count++] = operand(o);
  for (const ProgramOperand& o : instr.out) p.args.out[p.args.out_count++] = operand(o);
  if (instr.workspace.buffer >= 0) {
    p.args.workspace = operand(instr.workspace).data;
    p.args.workspace_bytes = instr.workspace.bytes();
  }
  p.args.attrs = &attrs;
  p.args.accumulate = instr.accumulate;
  p.key = h.digest();
  return p;
}

template <class Visit>
void each_op(const ProgramSet& set, const ArenaLayout& layout, char* scratch, Visit&& visit) {
  std::set<uint64_t> seen;
  for (const Program& program : set.programs)
    for (const Instr& instr : program.instrs) {
      if (instr.kind != InstrKind::op || instr.lane != Lane::compute) continue;
      const Packed p = packed(program, instr, layout, scratch);
      if (seen.insert(p.key).second) visit(instr, p);
    }
}

}  // namespace

void CudaDevice::connect(const ProgramSet& set) {
  if (communicator_.size() == 1) return;
  nccl_ = std::make_unique<NcclCommunicator>(communicator_, place_);
  // Connections depend on the size of what passes; the largest stands for all.
  int64_t largest = kAlign;
  std::vector<bool> met(static_cast<size_t>(communicator_.size()), false);
  for (const Program& program : set.programs)
    for (const Instr& instr : program.instrs)
      for (const ProgramTransfer& t : instr.transfers) {
        largest = std::max(largest, t.bytes((t.send ? instr.in : instr.out)[t.operand]));
        for (int32_t k = 0; k < t.count; ++k) met.at(t.peer + k * t.stride) = true;
      }
  std::vector<int> peers;
  for (int r = 0; r < communicator_.size(); ++r)
    if (met[r]) peers.push_back(r);
  const int64_t room =
      kWarmUpMemory / std::max<int64_t>(1, 2 * std::ssize(peers)) / kAlign * kAlign;
  largest = std::min({round_up(largest, kAlign), kLargestWarmUp, std::max(room, kAlign)});
  nccl_->warm_up(peers, communicator_.max(largest), lane(Lane::comm).stream, place_);
}

void CudaDevice::warm_up(const ProgramSet& set, const ArenaLayout& layout) {
  gemm_ = std::make_unique<Gemm>(options_.gemm_workspace);
  if (!options_.gemm_algorithms.empty()) {
    const std::string warning =
        gemm_->load_algorithms(options_.gemm_algorithms, "the checkpoint's manifest");
    if (!warning.empty() && options_.say) options_.say(warning);
  }
  int64_t bytes = kAlign;
  each_op(set, layout, nullptr,
          [&](const Instr&, const Packed& p) { bytes = std::max(bytes, p.bytes); });
  char* scratch = nullptr;
  const cudaError_t error =
      cudaMalloc(reinterpret_cast<void**>(&scratch), static_cast<size_t>(bytes));
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    size_t free = 0, total = 0;
    require(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
    refuse_arena(layout.tier_bytes[static_cast<int>(Tier::device)], free, total,
                 " (cudaMalloc: out of memory)");
  }
  require(error, "cudaMalloc of the warm-up");

  cudaStream_t stream = lane(Lane::compute).stream;
  // Zeros are valid operands of every op: token 0, row 0, finite everywhere.
  each_op(set, layout, scratch, [&](const Instr& instr, const Packed& p) {
    guarded(&instr, [&] {
      require(cudaMemsetAsync(scratch, 0, static_cast<size_t>(p.bytes), stream), "cudaMemsetAsync");
      kernels_(instr.op)(p.args, LaunchContext{stream, gemm_.get(), sm_count_});
      require(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
    });
  });
  gemm_->seal();
  // Copies from pageable memory, as restoring and saving make them, stage inside the driver.
  std::vector<char> pageable(kAlign);
  for (int l = 0; l < kLanes; ++l) {
    cudaStream_t s = lanes_[l].stream;
    require(cudaMemcpyAsync(scratch, pageable.data(), kAlign, cudaMemcpyHostToDevice, s),
            "cudaMemcpyAsync");
    require(cudaStreamSynchronize(s), "cudaStreamSynchronize");
    require(cudaMemcpyAsync(pageable.data(), scratch, kAlign, cudaMemcpyDeviceToHost, s),
            "cudaMemcpyAsync");
    require(cudaStreamSynchronize(s), "cudaStreamSynchronize");
  }
  require(cudaFree(scratch), "cudaFree");
}

}  // namespace spillway::cuda
