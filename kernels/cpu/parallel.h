// Threads inside a kernel. Work is cut into quanta whose number and bounds depend on shapes alone,
// so no result depends on the number of threads. Included by variant files: no std templates, and
// nothing with external linkage is defined here.
#pragma once

#include <cstdint>

namespace spillway::cpu {

// Threads that kernels called from this thread use, itself included: the calling thread's own
// setting (each lane thread has one; 1 until set), which oneDNN obeys too. At least 1.
void set_threads(int count);
int threads();

// even: each thread gets one contiguous run of quanta, the same ones every time (what a kernel
// wrote is in the caches of the core that reads it next). dynamic: for quanta of uneven cost.
enum class Schedule : uint8_t { even, dynamic };

// Calls body(context, quantum) once for every quantum in [0, quanta) and returns when all are done.
// Inside a body it runs serially. `body` must not throw.
void parallel_for(int64_t quanta, void (*body)(void* context, int64_t quantum), void* context,
                  Schedule schedule = Schedule::even);

// The same for a function object f(int64_t quantum).
template <class F>
static void for_quanta(int64_t quanta, const F& f, Schedule schedule = Schedule::even) {
  parallel_for(
      quanta, [](void* context, int64_t quantum) { (*static_cast<const F*>(context))(quantum); },
      const_cast<F*>(&f), schedule);
}

}  // namespace spillway::cpu
