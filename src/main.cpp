// `train`: parses the command line and hands over. Exit codes: base/error.h.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <functional>
#include <memory>

#include "base/error.h"
#include "base/file.h"
#include "checkpoint/store.h"
#include "runtime/cpu/mpi_communicator.h"
#include "train/bench.h"
#include "train/calibrate.h"
#include "train/doctor.h"
#include "train/plan_command.h"
#include "train/sample.h"
#include "train/together.h"
#include "train/trainer.h"
#include "train/version.h"

namespace spillway {
namespace {

struct CommandLine {
  std::string config;
  std::vector<std::string> set;
  TrainOptions train;
  PlanOptions plan;
  SampleOptions sample;
  BenchOptions bench;
  DoctorOptions doctor;
  std::string inspect_path, calibrate_out;
};

void add_config_options(CLI::App* app, CommandLine& c, bool required) {
  auto* option = app->add_option("--config", c.config, "JSON file that describes the run");
  if (required) option->required();
  app->add_option("--set", c.set, "Override one key: --set optimizer.lr=3e-4 (may be repeated)")
      ->allow_extra_args(false);
}

// Prints an error once: what all ranks throw alike is rank 0's to tell.
int report(const Error& e, const Communicator& communicator, bool shared) {
  if (communicator.size() == 1)
    std::fprintf(stderr, "train: %s\n", e.what());
  else if (!shared)
    std::fprintf(stderr, "train: rank %d: %s\n", communicator.rank(), e.what());
  else if (communicator.rank() == 0)
    std::fprintf(stderr, "train: %s\n", e.what());
  std::fflush(stderr);
  return static_cast<int>(e.code());
}

// What a command does together with the other ranks of the launch. The config is read by rank 0 and
// told to the others, so that a file that only one host lacks, and every error in it, is one error.
int run_together(const CommandLine& c,
                 const std::function<ExitCode(const Config&, Communicator&)>& command) {
  std::unique_ptr<Communicator> communicator = make_communicator();
  int code = 0;
  try {
    std::string text;
    on_rank_0(*communicator, [&] { text = to_json_text(load_config(c.config, c.set)); });
    text = communicator->broadcast_text(text, 0);
    return static_cast<int>(command(parse_config(text, c.config, {}), *communicator));
  } catch (const SharedError& e) {
    code = report(e, *communicator, true);
  } catch (const Error& e) {
    code = report(e, *communicator, false);
    communicator->abort();  // peers may be in the middle of a collective: do not wait for them
    std::fflush(nullptr);
    std::_Exit(code);
  }
  return code;
}

int run(int argc, char** argv) {
  CLI::App app("Spillway: pretrains transformers larger than the memory of their devices", "train");
  app.set_version_flag("--version", version_text());
  app.require_subcommand(0, 1);
  CommandLine c;
  add_config_options(&app, c, false);
  app.add_option("--resume", c.train.resume, "\"latest\", or a checkpoint's folder");
  app.add_option("--plan", c.train.plan_file, "Run this plan instead of making one");
  app.add_option("--stop-at", c.train.stop_at, "Write a checkpoint after this step and exit 75")
      ->check(CLI::PositiveNumber);
  app.add_flag("--poison", c.train.poison, "Fill freed bytes with NaN (tests)")->group("Testing");
  app.add_option("--chaos-seed", c.train.chaos_seed, "Seed of random copy delays")
      ->group("Testing");
  app.add_option("--chaos-us", c.train.chaos_us, "Delay each copy by up to this many microseconds")
      ->group("Testing");
  app.add_option("--dump-batches", c.train.dump_batches, "Append every step's batch to this file")
      ->group("Testing");

  auto* plan = app.add_subcommand("plan", "Print what fits and what it costs; runs nothing");
  add_config_options(plan, c, true);
  plan->add_option("--ranks", c.plan.ranks, "Ranks to plan for")->check(CLI::PositiveNumber);
  plan->add_flag("--json", c.plan.json, "JSON alone on standard output");
  plan->add_option("--out", c.plan.out, "Write the plan to this file");
  auto* reported =
      plan->add_option("--plan", c.plan.plan_file, "Report this plan instead of making one");
  plan->add_option("--verify", c.plan.verify_file, "Check the certificate of this plan")
      ->excludes(reported);
  plan->add_flag("--marginals", c.plan.marginals,
                 "Say what a little more memory or bandwidth would save, and plan again with it")
      ->excludes(reported);
  plan->add_option("--timeline", c.plan.timeline,
                   "Write lanes and memory of the planned step to this file, as a Chrome trace");
  plan->add_flag("--pareto", c.plan.pareto, "The fastest plan at each size of device memory");

  auto* sample = app.add_subcommand("sample", "Continue a prompt with a checkpoint's model");
  sample->add_option("--checkpoint", c.sample.checkpoint, "A checkpoint's folder")->required();
  sample->add_option("--prompt", c.sample.prompt, "Text to continue");
  sample->add_option("--tokens", c.sample.tokens, "Tokens to generate")->check(CLI::PositiveNumber);
  sample->add_option("--temperature", c.sample.temperature, "0: the most likely token")
      ->check(CLI::NonNegativeNumber);
  sample->add_option("--seed", c.sample.seed, "Seed of the draws");

  auto* inspect = app.add_subcommand("inspect", "List a checkpoint's tensors and hashes");
  inspect->add_option("checkpoint", c.inspect_path, "A checkpoint's folder")->required();

  auto* bench = app.add_subcommand("bench", "Measure this machine and this build");
  bench
      ->add_option("what", c.bench.what,
                   "gemm, step, overlap, device, checkpoint, predict, planner or claims")
      ->required();
  add_config_options(bench, c, false);
  bench->add_option("--repeat", c.bench.repeat, "Measured repetitions")->check(CLI::PositiveNumber);
  bench->add_option("--only", c.bench.only, "bench planner, claims: names that contain this");
  bench->add_option("--cases", c.bench.cases, "bench predict: configs that are drawn")
      ->check(CLI::PositiveNumber);
  bench->add_option("--seed", c.bench.seed, "bench predict: seed of the draws");
  bench->add_option("--json", c.bench.json, "bench device: also write what was measured here");

  auto* calibration = app.add_subcommand(
      "calibrate", "Measure this machine, alone or under mpirun or srun, into a hardware profile");
  add_config_options(calibration, c, true);
  calibration->add_option("--out", c.calibrate_out, "File for the profile, ending in .json")
      ->required();

  auto* doctor =
      app.add_subcommand("doctor", "Look for what breaks runs here, alone, under mpirun or srun");
  add_config_options(doctor, c, false);
  doctor->add_flag("--json", c.doctor.json, "JSON alone on standard output");

  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& e) {
    return app.exit(e);
  } catch (const CLI::ParseError& e) {
    throw Error(ExitCode::bad_input,
                std::string("command line: ") + e.what() + " (train --help lists what there is)");
  }
  if (*plan) return static_cast<int>(plan_command(load_config(c.config, c.set), c.plan));
  if (*sample) return static_cast<int>(sample_command(c.sample));
  if (*inspect) {
    std::fputs(inspect_checkpoint(posix_file_system(), c.inspect_path).c_str(), stdout);
    return 0;
  }
  if (*doctor) {
    c.doctor.config = c.config;
    c.doctor.set = c.set;
    return static_cast<int>(doctor_command(c.doctor));
  }
  if (*bench) {
    c.bench.config = c.config;
    c.bench.set = c.set;
    return static_cast<int>(bench_command(c.bench));
  }
  if (*calibration)
    return run_together(c, [&](const Config& config, Communicator& communicator) {
      calibrate(config, c.calibrate_out, communicator);
      return ExitCode::done;
    });
  if (c.config.empty()) bad_input("command line: --config is required (train --help)");
  return run_together(c, [&](const Config& config, Communicator& communicator) {
    return train(config, c.train, communicator);
  });
}

}  // namespace
}  // namespace spillway

int main(int argc, char** argv) {
  using spillway::ExitCode;
  try {
    return spillway::run(argc, argv);
  } catch (const spillway::Error& e) {
    std::fprintf(stderr, "train: %s\n", e.what());
    return static_cast<int>(e.code());
  } catch (const std::exception& e) {
    std::fprintf(stderr, "train: internal error: %s\n", e.what());
    return static_cast<int>(ExitCode::internal);
  }
}
