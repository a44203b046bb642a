#include "kernels/cpu/parallel.h"

#ifdef SPILLWAY_OWN_THREADS
#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>
#else
#include <omp.h>
#endif

namespace spillway::cpu {
namespace {

thread_local int thread_count = 1;
thread_local bool inside = false;  // a quantum is being executed by this thread

using Body = void (*)(void*, int64_t);

// Quanta [begin, end) of thread `index` of `count` under Schedule::even.
void run_share(int64_t quanta, int index, int count, Body body, void* context) {
  const int64_t begin = quanta * index / count, end = quanta * (index + 1) / count;
  for (int64_t q = begin; q < end; ++q) body(context, q);
}

}  // namespace

int threads() { return thread_count; }

#ifndef SPILLWAY_OWN_THREADS

void set_threads(int count) {
  thread_count = count < 1 ? 1 : count;
  omp_set_num_threads(thread_count);
}

void parallel_for(int64_t quanta, Body body, void* context, Schedule schedule) {
  const int team = quanta < thread_count ? static_cast<int>(quanta) : thread_count;
  if (team <= 1 || inside || omp_in_parallel()) {
    run_share(quanta, 0, 1, body, context);
    return;
  }
  // A team of one size for all kernels: libgomp rebuilds its threads when the size changes.
#pragma omp parallel num_threads(thread_count)
  {
    inside = true;
    if (schedule == Schedule::even) {
      run_share(quanta, omp_get_thread_num(), omp_get_num_threads(), body, context);
    } else {
#pragma omp for schedule(dynamic, 1)
      for (int64_t q = 0; q < quanta; ++q) body(context, q);
    }
    inside = false;
  }
}

#else

namespace {

// The helpers of one calling thread; they live until that thread ends or sets another count.
class Pool {
 public:
  explicit Pool(int helpers) {
    for (int i = 0; i < helpers; ++i) workers_.emplace_back([this, i] { work(i + 1); });
  }
  ~Pool() {
    {
      std::lock_guard lock(mutex_);
      stop_ = true;
    }
    wake_.notify_all();
    for (std::thread& w : workers_) w.join();
  }
  int helpers() const { return static_cast<int>(workers_.size()); }

  void run(int64_t quanta, Body body, void* context, Schedule schedule) {
    {
      std::lock_guard lock(mutex_);
      quanta_ = quanta, body_ = body, context_ = context, schedule_ = schedule;
      next_ = 0;
      pending_ = helpers();
      ++round_;
    }
    wake_.notify_all();
    inside = true;
    execute(0);
    inside = false;
    std::unique_lock lock(mutex_);
    done_.wait(lock, [this] { return pending_ == 0; });
  }

 private:
  void execute(int index) {
    if (schedule_ == Schedule::even) {
      run_share(quanta_, index, helpers() + 1, body_, context_);
    } else {
      for (int64_t q; (q = next_.fetch_add(1)) < quanta_;) body_(context_, q);
    }
  }
  void work(int index) {
    inside = true;
    uint64_t seen = 0;
    for (;;) {
      {
        std::unique_lock lock(mutex_);
        wake_.wait(lock, [&] { return stop_ || round_ != seen; });
        if (stop_) return;
        seen = round_;
      }
      execute(index);
      std::lock_guard lock(mutex_);
      if (--pending_ == 0) done_.notify_one();
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_, done_;
  uint64_t round_ = 0;
  int pending_ = 0;
  bool stop_ = false;
  int64_t quanta_ = 0;
  Body body_ = nullptr;
  void* context_ = nullptr;
  Schedule schedule_ = Schedule::even;
  std::atomic<int64_t> next_{0};
  std::vector<std::thread> workers_;
};

thread_local std::unique_ptr<Pool> pool;

}  // namespace

void set_threads(int count) {
  thread_count = count < 1 ? 1 : count;
  if (pool && pool->helpers() != thread_count - 1) pool.reset();
  if (!pool && thread_count > 1) pool = std::make_unique<Pool>(thread_count - 1);
}

void parallel_for(int64_t quanta, Body body, void* context, Schedule schedule) {
  if (quanta <= 1 || !pool || inside) {
    run_share(quanta, 0, 1, body, context);
    return;
  }
  pool->run(quanta, body, context, schedule);
}

#endif

}  // namespace spillway::cpu
