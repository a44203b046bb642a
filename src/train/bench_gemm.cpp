#include "train/bench_gemm.h"

#include <algorithm>
#include <chrono>
#include <functional>

#include "graph/op.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/table.h"
#ifndef SPILLWAY_OWN_THREADS
#include <omp.h>

#include <dnnl.hpp>
#endif

namespace spillway {
namespace {

double best_rate(double flops, int64_t repeat, const std::function<void()>& run) {
  run();  // warm
  double best = 0;
  for (int64_t i = 0; i < repeat; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    run();
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    best = std::max(best, flops / seconds.count());
  }
  return best;
}

double our_rate(Dtype dtype, const GemmRate& g, int threads, int64_t repeat) {
  const int64_t size = size_of(dtype);
  std::vector<char> a(g.m * g.k * size), w(g.n * g.k * size), y(g.m * g.n * size);
  Attrs attrs;
  KernelArgs args;
  args.in[0] = {a.data(), dtype, Dims(g.m, g.k)};
  args.in[1] = {w.data(), dtype, Dims(g.n, g.k)};
  args.out[0] = {y.data(), dtype, Dims(g.m, g.n)};
  args.in_count = 2;
  args.out_count = 1;
  args.attrs = &attrs;
  args.workspace_bytes = op_def(OpKind::matmul)
                             .workspace(attrs, {{dtype, Dims(g.m, g.k)}, {dtype, Dims(g.n, g.k)}},
                                        {.threads = threads});
  std::vector<char> workspace(args.workspace_bytes + 64);
  args.workspace =
      reinterpret_cast<void*>(round_up(reinterpret_cast<intptr_t>(workspace.data()), int64_t{64}));
  return best_rate(2.0 * g.m * g.n * g.k, repeat, [&] { cpu::kernel(OpKind::matmul)(args); });
}

#ifndef SPILLWAY_OWN_THREADS
double onednn_rate(Dtype dtype, const GemmRate& g, int64_t repeat) {
  using dnnl::memory;
  const auto type = dtype == Dtype::bf16 ? memory::data_type::bf16 : memory::data_type::f32;
  dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  dnnl::stream stream(engine);
  const memory::desc a({g.m, g.k}, type, memory::format_tag::ab);
  const memory::desc w({g.k, g.n}, type, memory::format_tag::any);
  const memory::desc c({g.m, g.n}, memory::data_type::f32, memory::format_tag::ab);
  const dnnl::matmul::primitive_desc pd(dnnl::matmul::desc(a, w, c), engine);
  memory am(a, engine), wm(pd.weights_desc(), engine), cm(c, engine);
  for (const memory& m : {am, wm})
    std::fill_n(static_cast<char*>(m.get_data_handle()), m.get_desc().get_size(), 0);
  const dnnl::matmul matmul(pd);
  return best_rate(2.0 * g.m * g.n * g.k, repeat, [&] {
    matmul.execute(stream, {{DNNL_ARG_SRC, am}, {DNNL_ARG_WEIGHTS, wm}, {DNNL_ARG_DST, cm}});
    stream.wait();
  });
}
#endif

}  // namespace

std::vector<GemmRate> measure_gemm(Dtype dtype, int threads, int64_t repeat) {
  std::vector<GemmRate> rates = {{2048, 768, 3072}, {2048, 3072, 768}, {4096, 2304, 768}};
  cpu::set_threads(threads);
#ifndef SPILLWAY_OWN_THREADS
  omp_set_num_threads(threads);
#endif
  for (GemmRate& g : rates) {
    g.ours = our_rate(dtype, g, threads, repeat);
#ifndef SPILLWAY_OWN_THREADS
    g.onednn = onednn_rate(dtype, g, repeat);
#endif
  }
  return rates;
}

}  // namespace spillway
