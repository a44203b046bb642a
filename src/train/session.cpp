#include "train/session.h"

#include <chrono>

#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/table.h"
#include "runtime/cpu/cpu_device.h"
#include "train/quality.h"
#include "train/together.h"
#include "verify/verify.h"

namespace spillway {
Session::Session(const Workload& workload, Communicator& communicator,
                 const SessionOptions& options)
    : workload_(workload) {
  // The plan is made once; every rank lowers the same placement for itself.
  const PlanInput& input = workload.input;
  on_rank_0(communicator, [&] {
    constexpr int64_t kLargestPlan = int64_t{64} << 20;
    if (!options.plan_file.empty()) {
      plan_json_ = read_text(posix_file_system(), options.plan_file, kLargestPlan);
      return;
    }
    if (!options.plan_text.empty()) {
      plan_json_ = options.plan_text;
      return;
    }
    report_ = make_plan(input);
    if (!report_.fits)
      throw Error(ExitCode::does_not_fit, shortfall_message(report_, input.budgets));
    plan_json_ = placement_to_json(report_.plan, workload.subject, quality_proof(report_, input));
  });
  plan_json_ = communicator.broadcast_text(plan_json_, 0);
  const bool made_here =
      communicator.rank() == 0 && options.plan_file.empty() && options.plan_text.empty();
  together(communicator, [&] { adopt_plan(made_here, options.plan_file); });
  on_rank_0(communicator, [&] {
    if (made_here || !proof_) return;
    if (within(report_.plan, proof_->budgets))
      check_proof(input, report_.plan, *proof_, options.plan_file);
    else if (options.say)  // with more threads, say
      options.say(options.plan_file +
                  ": the plan's certificate is for less memory than it needs "
                  "here, and says nothing");
  });
  Plan& plan = report_.plan;
  // Arenas may differ: the last ranks may hold a little less of every sharded tensor.
  const auto plan_hash = static_cast<int64_t>(hash_bytes(plan_json_.data(), plan_json_.size()));
  if (communicator.min(plan_hash) != communicator.max(plan_hash))
    internal_error("ranks disagree about the plan: rank {} has {:016x}", communicator.rank(),
                   plan_hash);

  const auto start = std::chrono::steady_clock::now();
  Limits limits;
  limits.tier_bytes[0] = input.budgets.device;
  limits.tier_bytes[1] = input.budgets.host;
  const auto findings = verify(plan.lowered.set, plan.layout, limits);
  if (!findings.empty()) internal_error("the plan is not valid: {}", describe(findings[0]));
  verify_seconds_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();

  together(communicator, [&] { device_ = make_device(workload, communicator, options); });
  device_->connect(plan.lowered.set);
  together(communicator, [&] {
    device_->warm_up(plan.lowered.set, plan.layout);
    Executor::Options execution{options.poison, options.on_host_wait};
    execution.host_kernels = options.kernels ? options.kernels : cpu::kernel;
    execution.host_thread_start = [threads = workload.topology.threads] {
      cpu::set_threads(threads);
    };
    executor_ =
        std::make_unique<Executor>(plan.lowered.set, plan.layout, *device_, std::move(execution));
    foreign_at_start_ = device_->foreign_bytes();
  });
  prepare_flush();
  recorder_ = std::make_unique<LaneRecorder>(plan.lowered.set.programs[0]);
  device_->record_times(LaneRecorder::sink, recorder_.get(), Device::Timed::waits);
}

int Session::program(std::string_view name) const {
  const auto& programs = report_.plan.lowered.set.programs;
  for (size_t p = 0; p < programs.size(); ++p)
    if (programs[p].name == name) return static_cast<int>(p);
  return -1;
}

void Session::prepare_flush() {
  flush_program_ = program("flush");
  if (flush_program_ < 0) return;
  StepScalars nothing_pending;
  nothing_pending.skip_update = 1;
  *io<StepScalars>("flush.scalars") = nothing_pending;
  device_->upload(io<StepScalars>("pending_scalars"), &nothing_pending, sizeof nothing_pending);
  if (!report_.plan.schedule.updates_on_host()) return;
  // Gradients of the step before the first one, which go to the host whatever the scalars say.
  const auto& buffers = report_.plan.lowered.set.buffers;
  const Graph& graph = train_schedule().graph;
  for (size_t b = 0; b < buffers.size(); ++b) {
    const Buffer& buffer = buffers[b];
    if (buffer.tier != Tier::device || buffer.tensor < 0 || !graph.tensors[buffer.tensor].carried ||
        graph.tensors[buffer.tensor].role != Role::grad)
      continue;
    device_->fill(Lane::compute, executor_->address(static_cast<BufferId>(b)), 0, buffer.bytes);
  }
  device_->synchronise_all();
}

void Session::flush_updates() {
  if (flush_program_ < 0) return;
  executor_->run(flush_program_);
  executor_->finish();
}

std::unique_ptr<Device> make_device(const Workload& workload, Communicator& communicator,
                                    const SessionOptions& options) {
  if (options.backend.cuda) {
    if (options.chaos_us > 0) bad_input("--chaos-us delays copies of the CPU backend only");
    CudaDeviceRequest request;
    request.reserve_bytes = workload.input.profile.reserve_bytes;
    request.gemm_algorithms = options.gemm_algorithms;
    request.say = options.say;
    request.gemm_workspace = workload.input.profile.gemm_workspace;
    return cuda_backend()->make_device(communicator, options.backend.device, request);
  }
  CpuDeviceOptions device;
  device.link = workload.config.hardware.link;
  device.chaos_seed = options.chaos_seed;
  device.chaos_us = options.chaos_us;
  device.compute_thread_start = [threads = workload.topology.threads] {
    cpu::set_threads(threads);
  };
  return std::make_unique<CpuDevice>(options.kernels ? options.kernels : cpu::kernel, &communicator,
                                     device);
}

// Every rank lowers the one placement for itself; rank 0 has done so if it made it.
void Session::adopt_plan(bool made_here, const std::string& plan_file) {
  const PlanInput& input = workload_.input;
  if (made_here) return;
  LoadedPlan loaded = placement_from_json(plan_json_, plan_file.empty() ? "plan" : plan_file,
                                          workload_.train, workload_.subject);
  report_.plan = evaluate_placement(input, loaded.placement, loaded.schedule);
  proof_ = std::move(loaded.proof);
  report_.fits = report_.plan.device.peak <= input.budgets.device &&
                 report_.plan.host.peak <= input.budgets.host;
  if (report_.fits) return;
  const bool device = report_.plan.device.peak > input.budgets.device;
  const char* tier = device ? "device" : "host";
  fail(ExitCode::does_not_fit, "{}: the plan needs {} of {} memory, {} are there; raise memory.{}",
       plan_file.empty() ? "plan" : plan_file,
       format_bytes(device ? report_.plan.device.peak : report_.plan.host.peak), tier,
       format_bytes(device ? input.budgets.device : input.budgets.host), tier);
}

}  // namespace spillway
