// A tiny model's training program on the CUDA runtime, with kernels that touch their operands and
// compute nothing: what moves bytes and who waits for whom is the product's, so that hundreds of
// runs take seconds.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "kernels/cuda/table.h"
#include "runtime/cuda/cuda_device.h"
#include "runtime/executor.h"
#include "tests/emulated_cuda/runtime.h"
#include "train/workload.h"

namespace spillway {

// Reads every input, writes workspace and outputs, reads the workspace again.
inline void touch_operands(const KernelArgs& args, const cuda::LaunchContext& context) {
  emulated::Work work;
  work.name = "kernel";
  work.run = [args] {
    const auto bytes = [](const TensorArg& t) {
      return static_cast<size_t>(t.dims.count() * size_of(t.dtype));
    };
    for (int i = 0; i < args.in_count; ++i) emulated::reads(args.in[i].data, bytes(args.in[i]));
    const auto workspace = static_cast<size_t>(args.workspace_bytes);
    if (workspace > 0) {
      emulated::writes(args.workspace, workspace);
      emulated::reads(args.workspace, workspace);
    }
    for (int i = 0; i < args.out_count; ++i) emulated::writes(args.out[i].data, bytes(args.out[i]));
  };
  emulated::enqueue(context.stream, std::move(work));
}

// Stands for the table of kernels, which these tests do not link.
cuda::CudaKernel cuda::kernel(OpKind) { return touch_operands; }

// Two layers, two micro-batches, an evaluation; everything that can stream does, through rings of
// `slots`.
struct ProgramSource {
  std::unique_ptr<Workload> workload;
  Plan plan;

  ProgramSource(int rank, int ranks, int slots) {
    Config c;
    c.model.family = Family::llama;
    c.model.layers = 4;
    c.model.hidden = 128;
    c.model.heads = 2;
    c.model.kv_heads = 1;
    c.model.head_dim = 64;
    c.model.ffn = 128;
    c.model.context = 16;
    c.model.vocab = 64;
    c.train.micro_batch = 1;
    c.train.batch = 3 * ranks;
    c.train.steps = 2;
    c.train.eval_every = 1;
    c.train.precision = Precision::bf16;
    c.optimizer.clip = 1;
    workload = std::make_unique<Workload>(c, Topology{rank, ranks, ranks, 1});
    workload->input.budgets = {int64_t{1} << 40, int64_t{1} << 40};
    Placement placement;
    for (const PlaceUnit& unit : place_units(workload->train.get({}))) {
      placement.where[unit.key] = Where::host;
      placement.slots[unit.key.first] = slots;
    }
    plan = evaluate_placement(workload->input, placement, {});
  }
};

// What a test may do to the runtime: stands between executor and device.
class ForwardingDevice : public Device {
 public:
  explicit ForwardingDevice(Device& to) : to_(to) {}
  void* reserve(Tier t, int64_t n) override { return to_.reserve(t, n); }
  Ticket launch(Lane l, OpKind op, const KernelArgs& a, const Instr* i) override {
    return to_.launch(l, op, a, i);
  }
  Ticket copy(Lane l, void* to, const void* from, int64_t n, const Instr* i) override {
    return to_.copy(l, to, from, n, i);
  }
  Ticket exchange(Lane l, const ExchangeArgs& a, const Instr* i) override {
    return to_.exchange(l, a, i);
  }
  Ticket fill(Lane l, void* to, uint8_t v, int64_t n) override { return to_.fill(l, to, v, n); }
  void signal(Lane l) override { to_.signal(l); }
  void wait(Lane l, Lane on, Ticket t) override { to_.wait(l, on, t); }
  void synchronise(Lane l, Ticket t) override { to_.synchronise(l, t); }
  void synchronise_all() override { to_.synchronise_all(); }
  void upload(void* to, const void* from, int64_t n) override { to_.upload(to, from, n); }
  void download(void* to, const void* from, int64_t n) override { to_.download(to, from, n); }
  Ticket completed(Lane l) const override { return to_.completed(l); }
  const Instr* running(Lane l) const override { return to_.running(l); }
  int64_t bytes_copied(Lane l) const override { return to_.bytes_copied(l); }
  void record_times(TimeSink s, void* c, Timed w) override { to_.record_times(s, c, w); }

 protected:
  Device& to_;
};

// Runs the plan's programs as the trainer would: step, evaluation, step. `wrap` may put a device of
// its own before the real one; `between` runs after each program was issued and before it has been
// waited for.
struct RunHooks {
  std::function<std::unique_ptr<Device>(Device&)> wrap;
  std::function<void(Executor&, const Plan&)> between;
  cuda::CudaDeviceOptions options;
  bool poison = false;
  bool back_to_back = false;  // the host waits once, at the end
};

// As the trainer does after a step.
inline void look_at_results(Executor& executor, const Plan& plan) {
  for (const char* name : {"train.scalars.out", "evaluate.losses"})
    static_cast<void>(*static_cast<volatile char*>(executor.address(plan.lowered.io.at(name))));
}

inline void run_plan(const Plan& plan, Communicator& communicator, const RunHooks& hooks) {
  cuda::CudaDevice device(cuda::kernel, communicator, communicator.rank(), hooks.options);
  device.connect(plan.lowered.set);
  device.warm_up(plan.lowered.set, plan.layout);
  const std::unique_ptr<Device> wrapped = hooks.wrap ? hooks.wrap(device) : nullptr;
  Executor executor(plan.lowered.set, plan.layout, wrapped ? *wrapped : device,
                    Executor::Options{hooks.poison});
  for (const Home& home : plan.lowered.homes) {
    const Buffer& buffer = plan.lowered.set.buffers[home.buffer];
    const std::vector<char> zeros(static_cast<size_t>(buffer.bytes));
    device.upload(executor.address(home.buffer), zeros.data(), buffer.bytes);
  }
  int64_t step = 0;
  for (const int program : {0, 1, 0}) {
    if (program == 0) device.enter_step(++step);
    executor.run(program);
    if (hooks.between) hooks.between(executor, plan);
    if (hooks.back_to_back) continue;
    executor.finish();
    look_at_results(executor, plan);
  }
  executor.finish();
  look_at_results(executor, plan);
}

}  // namespace spillway
