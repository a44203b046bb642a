#include "train/trainer.h"

#include <chrono>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>

#include "base/file.h"
#include "base/folder_lock.h"
#include "base/hash.h"
#include "checkpoint/store.h"
#include "data/prefetch.h"
#include "runtime/launch.h"
#include "runtime/watchdog.h"
#include "telemetry/console.h"
#include "telemetry/metrics.h"
#include "train/learning_rate.h"
#include "train/plan_timeline.h"
#include "train/rank_check.h"
#include "train/saver.h"
#include "train/session.h"
#include "train/state.h"
#include "train/straggler.h"
#include "train/together.h"

namespace spillway {
namespace {

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void write_text(const std::string& path, const std::string& text) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out << text << '\n';
  out.close();
  if (!out) bad_input("{}: cannot be written: {}", path, strerror(errno));
}

class Trainer {
 public:
  Trainer(const Config& config, const TrainOptions& options, Communicator& communicator,
          Watchdog& watchdog)
      : options_(options),
        communicator_(communicator),
        files_(options.files != nullptr ? *options.files : posix_file_system()),
        watchdog_(watchdog),
        console_(communicator.rank() == 0, config.train.steps) {
    lock_output(config.output);
    find_checkpoint(config);
    Config resolved = config;
    if (resume_ && resume_->manifest().run.ranks == communicator.size())
      resolved.parallel.tree = resume_->manifest().run.tree;
    const auto [backend, profile] = choose(config.hardware);
    const ClaimedCores cores = claim_cores(static_cast<int>(config.train.threads), communicator);
    workload_ = std::make_unique<Workload>(resolved,
                                           Topology{communicator.rank(), communicator.size(),
                                                    communicator.ranks_on_node(), cores.threads},
                                           profile);
    if (!cores.note.empty()) console_.line(cores.note);
    open_data();
    check_resume();
    refuse_used_output();
    start_session(backend);
    prepare_output();
    open_dump();
    announce();
    if (resume_)
      restore_state(session_->train_schedule(), session_->homes(), session_->executor(), *resume_);
    else
      initialise_state(session_->train_schedule(), session_->homes(), session_->executor(),
                       config.train.seed);
    if (resume_) run_ = resume_->manifest().run;
    run_.ranks = communicator.size();
    run_.tree = workload_->spec.tree;
    run_.numerics_hash = numerics_hash(workload_->config, communicator.size());
    run_.fingerprint = session_->device().fingerprint();
    // A table that this device has no use for stays for one that has.
    const std::string algorithms = session_->device().gemm_algorithms();
    if (!algorithms.empty()) run_.gemm_algorithms = algorithms;
    run_.config = to_json_text(workload_->config);
    resume_.reset();
  }

  ExitCode run() {
    const Config& config = workload_->config;
    const int64_t steps = config.train.steps;
    int64_t step = static_cast<int64_t>(run_.step);
    if (step >= steps) console_.line(fmt::format("step {} of {} is done already", step, steps));
    Prefetcher prefetcher(*dataset_, reader_->shape(), static_cast<uint64_t>(step) + 1);
    started_ = now();
    while (step < steps) {
      ++step;
      StepMetrics metrics = train_step(prefetcher, step);
      saver_->poll();
      check_ranks(step);
      const bool stop = agreed_stop() || step == options_.stop_at;
      const bool last = step == steps;
      if (config.train.eval_every > 0 && dataset_->validation_samples() > 0 &&
          (step % config.train.eval_every == 0 || last))
        metrics.validation_loss = evaluate(step);
      metrics.save_stall_seconds = saver_->take_stall_seconds();
      metrics.saved = saver_->take_saved();
      if (metrics_)
        if (const std::string why = metrics_->append(metrics); !why.empty()) console_.warning(why);
      console_.step(metrics);
      if (run_.skipped_in_row >= static_cast<uint64_t>(config.train.max_skipped) &&
          run_.skipped_in_row > 0) {
        saver_->drain();
        fail(ExitCode::no_progress,
             "step {}: loss or gradient norm not finite in {} steps in a row (train.max_skipped)",
             step, run_.skipped_in_row);
      }
      const bool due = config.checkpoint.every > 0 && step % config.checkpoint.every == 0;
      if (due || last || stop) check_foreign_bytes(step);
      if (last || stop)
        saver_->save_now(run_);
      else if (due)
        saver_->begin(run_);
      if (stop && !last) {
        console_.line(fmt::format("stopped at step {}; continue with --resume latest", step));
        watchdog_.leave(ExitCode::resume_me);
        return ExitCode::resume_me;
      }
    }
    finish(step);
    watchdog_.leave(ExitCode::done);
    return ExitCode::done;
  }

 private:
  // ---- start-up -----------------------------------------------------------------------------

  void find_checkpoint(const Config& config) {
    if (options_.resume.empty()) return;
    std::string path;
    on_rank_0(communicator_, [&] {
      const auto choice = find_resume(files_, config.output, options_.resume);
      if (!choice) {
        console_.line(fmt::format("{}: no checkpoint, starting at step 0", config.output));
        return;
      }
      for (const SkippedCheckpoint& s : choice->skipped)
        console_.warning(fmt::format("skipped {}: {}", s.path, s.reason));
      path = choice->path;
    });
    path = communicator_.broadcast_text(path, 0);
    if (!path.empty()) resume_ = std::make_unique<CheckpointReader>(files_, path);
  }

  void check_resume() {
    if (!resume_) return;
    const RunState& saved = resume_->manifest().run;
    for (const KeyChange& change : changes_that_forbid_resume(saved.config, workload_->config)) {
      if (change.key == "parallel.tree" && saved.ranks != communicator_.size()) continue;
      bad_input(
          "{}: {} is {} in the checkpoint and {} in the config; a resumed run cannot change it",
          resume_->path(), change.key, change.before, change.after);
    }
    console_.line(fmt::format("resuming {} at step {}", resume_->path(), saved.step));
  }

  std::pair<BackendChoice, HardwareProfile> choose(const HardwareConfig& hardware) {
    try {
      const BackendChoice backend = choose_backend(hardware.backend, communicator_);
      if (!backend.note.empty()) console_.line(backend.note);
      return {backend, profile_for(backend, hardware, communicator_)};
    } catch (const Error& e) {
      throw SharedError(e.code(), e.what());  // all ranks threw it
    }
  }

  void start_session(const BackendChoice& backend) {
    SessionOptions options{options_.plan_file, options_.poison, options_.chaos_seed,
                           options_.chaos_us};
    options.backend = backend;
    if (resume_) options.gemm_algorithms = resume_->manifest().run.gemm_algorithms;
    options.say = [this](const std::string& line) { console_.line(line); };
    options.on_host_wait = [this](bool waiting) {
      watchdog_.enter(waiting ? Phase::saving : Phase::step, step_);
    };
    session_ = std::make_unique<Session>(*workload_, communicator_, options);
    saver_ = std::make_unique<Saver>(files_, communicator_, workload_->config, watchdog_, console_);
    saver_->use(*session_);
    rank_check_ = std::make_unique<RankCheck>(*session_, communicator_);
    straggler_watch_ = std::make_unique<StragglerWatch>(communicator_);
    if (!rank_check_->note().empty()) console_.warning(rank_check_->note());
    watch_ = std::make_unique<Watch>(watchdog_, session_->device());
    foreign_bytes_ = session_->foreign_at_start();
    if (resume_ && resume_->manifest().run.fingerprint != session_->device().fingerprint())
      console_.warning(
          "the checkpoint was written on another device, instruction set or library version: the "
          "run goes on, and agrees within rounding (about 1e-5 relative in f32, 1e-2 in bf16), not "
          "bitwise");
  }

  // Nothing may take device memory once a run has begun. What another process takes is its own
  // affair until something fails, so it is said and not punished.
  void check_foreign_bytes(int64_t step) {
    constexpr int64_t kGranularity = int64_t{2} << 20;  // of device allocations
    const int64_t now = session_->device().foreign_bytes();
    if (now <= foreign_bytes_ + kGranularity) return;
    console_.warning(fmt::format(
        "step {}: device memory beside the arena grew from {} to {} since start-up; nothing here "
        "allocates in a step, so another process or a library took it",
        step, format_bytes(foreign_bytes_), format_bytes(now)));
    foreign_bytes_ = now;
  }

  void open_data() {
    const Config& c = workload_->config;
    dataset_ = std::make_unique<Dataset>(c.data, c.model.vocab, c.model.context, c.train.seed);
    BatchShape shape;
    shape.batch = c.train.batch;
    shape.micro_batch = c.train.micro_batch;
    shape.rank = communicator_.rank();
    shape.ranks = communicator_.size();
    reader_ = std::make_unique<BatchReader>(*dataset_, shape);
    shape.rank = RankCheck::neighbour(shape.rank, shape.ranks);
    neighbour_reader_ = std::make_unique<BatchReader>(*dataset_, shape);
    hashes_.resize(static_cast<size_t>(c.train.batch));
  }

  void refuse_used_output() {
    const std::string& output = workload_->config.output;
    on_rank_0(communicator_, [&] {
      if (!options_.resume.empty()) return;
      std::error_code error;
      if (std::filesystem::exists(output + "/metrics.jsonl", error) ||
          !list_checkpoints(files_, output).empty())
        bad_input("{}: output folder holds a run already; use --resume latest, or another output",
                  output);
    });
  }

  // Before anything in an output folder is looked at, if it is there.
  void lock_output(const std::string& output) {
    on_rank_0(communicator_, [&] {
      std::error_code error;
      if (lock_ || !std::filesystem::is_directory(output, error)) return;
      lock_ = std::make_unique<FolderLock>(output);
      if (!lock_->warning().empty()) console_.warning(lock_->warning());
    });
  }

  // Only once the run is known to fit: a run that never began leaves nothing behind.
  void prepare_output() {
    const std::string& output = workload_->config.output;
    on_rank_0(communicator_, [&] {
      std::error_code error;
      std::filesystem::create_directories(output, error);
      if (error) bad_input("output: {} cannot be made: {}", output, error.message());
    });
    lock_output(output);
    refuse_used_output();  // again: another run may have made the folder since
    on_rank_0(communicator_, [&] {
      write_text(output + "/config.json", to_json_text(workload_->config));
      write_text(output + "/plan.json", session_->plan_json());
      metrics_ = std::make_unique<MetricsFile>(output + "/metrics.jsonl");
    });
  }

  void open_dump() {
    const std::string& path = options_.dump_batches;
    if (path.empty()) return;
    if (communicator_.size() > 1) bad_input("--dump-batches: only with one rank");
    dump_.open(path, std::ios::binary | std::ios::app);
    if (!dump_) bad_input("{}: cannot be written: {}", path, strerror(errno));
  }

  void announce() {
    const Plan& plan = session_->report().plan;
    const Workload& w = *workload_;
    console_.line(fmt::format(
        "{} parameters, {} rank{} × {} thread{}, {} tokens a step, {} training sequences, backend "
        "{}",
        parameter_total(), w.topology.ranks, w.topology.ranks == 1 ? "" : "s", w.topology.threads,
        w.topology.threads == 1 ? "" : "s", w.tokens_per_step, dataset_->train_samples(),
        session_->device().description()));
    console_.line(fmt::format(
        "plan: device {}, host {}, step {:.1f} ms predicted, exposed transfer {:.1f} ms; verified "
        "in "
        "{:.0f} ms",
        format_bytes(plan.device.peak), format_bytes(plan.host.peak), 1e3 * plan.step_seconds,
        1e3 * plan.exposed_transfer_seconds(), 1e3 * session_->verify_seconds()));
  }

  int64_t parameter_total() const {
    int64_t total = 0;
    for (const Param& p : session_->train_schedule().graph.params) total += p.live.count();
    return total;
  }

  // ---- one step -----------------------------------------------------------------------------

  void load_batch(const StepBatch& batch) {
    const int64_t rows = reader_->rows();
    for (int32_t m = 0; m < workload_->spec.micro_batches; ++m) {
      const auto put = [&](const char* name, std::span<const int32_t> values) {
        std::memcpy(session_->io<int32_t>(std::string("train.") + name, m),
                    values.data() + m * rows, static_cast<size_t>(rows) * 4);
      };
      put("tokens", batch.tokens);
      put("targets", batch.targets);
      put("token_order", batch.token_order);
    }
    if (!dump_.is_open()) return;
    for (const auto values : {batch.tokens, batch.targets})
      dump_.write(reinterpret_cast<const char*>(values.data()),
                  static_cast<std::streamsize>(values.size_bytes()));
    if (!dump_.flush()) bad_input("{}: cannot be written", options_.dump_batches);
  }

  StepMetrics train_step(Prefetcher& prefetcher, int64_t step) {
    const Config& c = workload_->config;
    step_ = step;
    watchdog_.enter(Phase::step, step);
    const double begin = now();
    const StepBatch& batch = prefetcher.get(static_cast<uint64_t>(step));
    const double data_seconds = now() - begin;
    load_batch(batch);
    StepScalars scalars;
    scalars.step = static_cast<uint64_t>(step);
    scalars.seed = c.train.seed;
    scalars.lr = static_cast<float>(learning_rate(c.optimizer, step, c.train.steps));
    const double t = static_cast<double>(run_.updates + 1);
    scalars.beta1_correction = static_cast<float>(1.0 - std::pow(c.optimizer.beta1, t));
    scalars.beta2_correction = static_cast<float>(1.0 - std::pow(c.optimizer.beta2, t));
    std::memcpy(session_->io<StepScalars>("train.scalars"), &scalars, sizeof scalars);
    const bool traced = ++steps_here_ == kTracedStep;
    Device& device = session_->device();
    device.enter_step(step);
    if (traced) session_->recorder().capture(instances());
    if (traced) device.record_times(LaneRecorder::sink, &session_->recorder(), Device::Timed::all);
    session_->executor().run(0);
    communicator_.gather(batch.hashes.data(), static_cast<int64_t>(batch.hashes.size_bytes()),
                         hashes_.data());
    session_->executor().finish();
    std::memcpy(&scalars, session_->io<StepScalars>("train.scalars.out"), sizeof scalars);
    const double seconds = now() - begin;
    if (traced) {
      device.record_times(LaneRecorder::sink, &session_->recorder(), Device::Timed::waits);
      write_timeline();
    }

    if (scalars.skip_update != 0) {
      ++run_.skipped;
      ++run_.skipped_in_row;
      console_.warning(
          fmt::format("step {}: loss or gradient norm not finite, update skipped", step));
    } else {
      ++run_.updates;
      run_.skipped_in_row = 0;
    }
    run_.step = static_cast<uint64_t>(step);
    run_.data_position = static_cast<uint64_t>(step * c.train.batch);

    const Plan& plan = session_->report().plan;
    StepMetrics m;
    m.step = step;
    m.loss = scalars.loss;
    m.grad_norm = scalars.norm;
    m.lr = static_cast<double>(scalars.lr);
    m.tokens = step * workload_->tokens_per_step;
    m.step_seconds = seconds;
    m.tokens_per_second = static_cast<double>(workload_->tokens_per_step) / seconds;
    m.mfu =
        workload_->flops_per_step() / (seconds * workload_->peak_flops() * communicator_.size());
    m.device_peak_bytes = plan.device.peak;
    m.host_peak_bytes = plan.host.peak;
    m.exposed_transfer_seconds = session_->recorder().take_exposed_transfer();
    const std::string slow =
        straggler_watch_->step(data_seconds + session_->recorder().take_busy(Lane::compute));
    if (!slow.empty()) console_.warning(slow);
    m.token_hash = hex(token_hash(hashes_, reader_->shape()));
    m.skipped = scalars.skip_update != 0;
    return m;
  }

  size_t instances() const {
    size_t count = 0;
    for (const Segment& s : session_->report().plan.lowered.set.programs[0].segments)
      count += static_cast<size_t>(s.end - s.begin) * static_cast<size_t>(s.trip);
    return count;
  }

  void write_timeline() {
    if (communicator_.rank() != 0) return;
    constexpr size_t kSamples = 2000;
    const PlanTimeline planned = plan_timeline(workload_->input, session_->report().plan, kSamples);
    try {
      write_text(workload_->config.output + "/timeline.json",
                 chrome_trace(planned.lanes, session_->recorder().captured(), planned.memory));
    } catch (const Error& e) {
      console_.warning(e.what());  // a full disk is no reason to end a run
    }
  }

  // ---- agreement between ranks --------------------------------------------------------------

  void check_ranks(int64_t step) {
    const int64_t every = workload_->config.train.check_every;
    if (every == 0 || step % every != 0) return;
    watchdog_.enter(Phase::checking, step);
    try {
      rank_check_->run(step, [&](int rank, int64_t micro, const MicroBatch& out) {
        BatchReader& reader = rank == communicator_.rank() ? *reader_ : *neighbour_reader_;
        reader.fill(static_cast<uint64_t>(step), micro, out);
      });
    } catch (const SharedError&) {
      saver_->drain();  // what was saved before is good
      throw;
    }
    session_->recorder().take_exposed_transfer();
    session_->recorder().take_busy(Lane::compute);
    if (rank_check_->runs() == 1)
      console_.line(fmt::format(
          "step {}: ranks agree; it took {:.1f} ms to hash what all hold alike, {:.1f} ms to run a "
          "micro-batch twice",
          step, 1e3 * rank_check_->weights_seconds(), 1e3 * rank_check_->gradients_seconds()));
  }

  bool agreed_stop() { return communicator_.max(watchdog_.stop_requested() ? 1 : 0) != 0; }

  // ---- evaluation, checkpoints --------------------------------------------------------------

  double evaluate(int64_t step) {
    watchdog_.enter(Phase::evaluating, step);
    const int64_t rows = reader_->rows();
    int64_t batches = reader_->validation_batches();
    if (workload_->config.train.eval_batches > 0)
      batches = std::min(batches, workload_->config.train.eval_batches);
    double sums[2] = {0, 0};  // negative log-likelihood, tokens
    std::vector<int32_t> order(static_cast<size_t>(rows));
    std::vector<uint64_t> hashes(static_cast<size_t>(workload_->config.train.micro_batch));
    const auto size = static_cast<size_t>(rows);
    session_->flush_updates();
    for (int64_t b = 0; b < batches; ++b) {
      const int64_t real =
          reader_->fill_validation(b, {{session_->io<int32_t>("evaluate.tokens"), size},
                                       {session_->io<int32_t>("evaluate.targets"), size},
                                       order,
                                       hashes});
      session_->executor().run(1);
      session_->executor().finish();
      sums[0] += *session_->io<double>("evaluate.losses");
      sums[1] += static_cast<double>(real * workload_->config.model.context);
      watchdog_.progress();
    }
    std::vector<double> all(2 * static_cast<size_t>(communicator_.size()));
    communicator_.gather(sums, sizeof sums, all.data());
    double loss = 0, tokens = 0;
    for (size_t r = 0; r < all.size(); r += 2) loss += all[r], tokens += all[r + 1];
    session_->recorder().take_exposed_transfer();
    session_->recorder().take_busy(Lane::compute);
    check_foreign_bytes(step);
    // The graph scales by 1 / tokens of a training step.
    return loss * static_cast<double>(workload_->tokens_per_step) / tokens;
  }

  void finish(int64_t step) {
    watchdog_.enter(Phase::finished, step);
    if (rank_check_->runs() > 0)
      console_.line(fmt::format("{} checks that ranks agree: {:.2f} % of the run",
                                rank_check_->runs(),
                                100 * rank_check_->seconds() / (now() - started_)));
    console_.line(fmt::format("done: {} steps in {}", step, format_duration(now() - started_)));
  }

  static constexpr int64_t kTracedStep = 2;  // of this process: the last that may allocate

  const TrainOptions& options_;
  Communicator& communicator_;
  FileSystem& files_;
  Watchdog& watchdog_;
  Console console_;
  std::unique_ptr<FolderLock> lock_;  // rank 0's, for as long as the run lasts
  std::unique_ptr<CheckpointReader> resume_;
  std::unique_ptr<Workload> workload_;
  std::unique_ptr<Dataset> dataset_;
  std::unique_ptr<BatchReader> reader_, neighbour_reader_;  // the latter for checks
  std::unique_ptr<MetricsFile> metrics_;
  std::ofstream dump_;
  std::unique_ptr<Saver> saver_;  // outlives the session's io lane
  std::unique_ptr<Session> session_;
  struct Watch {  // ends before the device does
    Watch(Watchdog& w, const Device& device) : watchdog(w) { w.watch(&device); }
    ~Watch() { watchdog.watch(nullptr); }
    Watchdog& watchdog;
  };
  std::unique_ptr<Watch> watch_;
  std::unique_ptr<RankCheck> rank_check_;
  std::unique_ptr<StragglerWatch> straggler_watch_;
  int64_t foreign_bytes_ = 0;
  RunState run_;
  std::vector<uint64_t> hashes_;
  int64_t steps_here_ = 0, step_ = 0;
  double started_ = 0;
};

}  // namespace

ExitCode train(const Config& config, const TrainOptions& options, Communicator& communicator) {
  Watchdog watchdog(communicator);
  try {
    Trainer trainer(config, options, communicator, watchdog);
    return trainer.run();
  } catch (const Error& e) {
    // A broken exchange is rarely the cause: say so if a peer is gone.
    constexpr double kPeerSeconds = 2;
    if (e.code() == ExitCode::no_progress && communicator.size() > 1)
      watchdog.check_peers(kPeerSeconds);
    watchdog.leave(e.code());
    throw;
  }
}

}  // namespace spillway
