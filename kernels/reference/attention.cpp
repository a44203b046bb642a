#include "graph/ops/attention.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/reference/operands.h"
#include "kernels/reference/table.h"

namespace spillway::reference {
namespace {

double dot(const double* a, const double* b, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

// Where the heads of packed qkv rows stand.
struct Heads {
  explicit Heads(const Attrs& attrs)
      : d(attrs.head_dim),
        group(attrs.heads / attrs.kv_heads),
        width((attrs.heads + 2 * attrs.kv_heads) * d),
        k0(attrs.heads * d),
        v0(k0 + attrs.kv_heads * d),
        scale(1 / std::sqrt(static_cast<double>(d))) {}
  int64_t q(int64_t row, int64_t head) const { return row * width + head * d; }
  int64_t k(int64_t row, int64_t head) const { return row * width + k0 + head / group * d; }
  int64_t v(int64_t row, int64_t head) const { return row * width + v0 + head / group * d; }
  int64_t d, group, width, k0, v0;
  double scale;
};

// scores → probabilities; returns the log of the sum of exponentials.
double softmax(std::vector<double>& scores) {
  const double top = *std::max_element(scores.begin(), scores.end());
  double sum = 0;
  for (double s : scores) sum += std::exp(s - top);
  for (double& s : scores) s = std::exp(s - top) / sum;
  return top + std::log(sum);
}

}  // namespace

void attention(const KernelArgs& args) {
  const Attrs& attrs = *args.attrs;
  const Heads at(attrs);
  const double* qkv = f64(args.in[0]);
  double* o = f64(args.out[0]);
  double* lse = f64(args.out[1]);
  const int64_t context = attrs.context, d = at.d;
  for (int64_t sequence = 0; sequence < attrs.batch; ++sequence)
    for (int64_t head = 0; head < attrs.heads; ++head)
      for (int64_t t = 0; t < context; ++t) {
        const int64_t first = sequence * context, row = first + t;
        std::vector<double> p(t + 1);
        for (int64_t j = 0; j <= t; ++j)
          p[j] = at.scale * dot(qkv + at.q(row, head), qkv + at.k(first + j, head), d);
        lse[(sequence * attrs.heads + head) * context + t] = softmax(p);
        double* out = o + (row * attrs.heads + head) * d;
        std::fill_n(out, d, 0.0);
        for (int64_t j = 0; j <= t; ++j)
          for (int64_t i = 0; i < d; ++i) out[i] += p[j] * qkv[at.v(first + j, head) + i];
      }
}

void attention_grad(const KernelArgs& args) {
  const Attrs& attrs = *args.attrs;
  const Heads at(attrs);
  const double* qkv = f64(args.in[0]);
  const double* o = f64(args.in[1]);
  const double* lse = f64(args.in[2]);
  const double* dout = f64(args.in[3]);
  double* dqkv = f64(args.out[0]);
  const int64_t context = attrs.context, d = at.d;
  std::fill_n(dqkv, args.out[0].dims.count(), 0.0);
  for (int64_t sequence = 0; sequence < attrs.batch; ++sequence)
    for (int64_t head = 0; head < attrs.heads; ++head)
      for (int64_t t = 0; t < context; ++t) {
        const int64_t first = sequence * context, row = first + t;
        const double log_sum = lse[(sequence * attrs.heads + head) * context + t];
        const int64_t out = (row * attrs.heads + head) * d;
        const double mean = dot(o + out, dout + out, d);  // Σ_j p_j·dp_j
        for (int64_t j = 0; j <= t; ++j) {
          const int64_t q = at.q(row, head), k = at.k(first + j, head), v = at.v(first + j, head);
          const double p = std::exp(at.scale * dot(qkv + q, qkv + k, d) - log_sum);
          const double ds = p * (dot(dout + out, qkv + v, d) - mean) * at.scale;
          for (int64_t i = 0; i < d; ++i) {
            dqkv[q + i] += ds * qkv[k + i];
            dqkv[k + i] += ds * qkv[q + i];
            dqkv[v + i] += p * dout[out + i];
          }
        }
      }
}

void attention_cached(const KernelArgs& args) {
  const Attrs& attrs = *args.attrs;
  const Heads at(attrs);
  const StepScalars& now = scalars(args.in[3]);
  const double* qkv = f64(args.in[0]);
  double* o = f64(args.out[0]);
  double* k_cache = f64(args.out[1]);
  double* v_cache = f64(args.out[2]);
  const int64_t d = at.d, cache_width = attrs.kv_heads * d;
  std::fill_n(o, args.out[0].dims.count(), 0.0);
  for (int64_t r = 0; r < now.count; ++r)
    for (int64_t i = 0; i < cache_width; ++i) {
      k_cache[(now.position + r) * cache_width + i] = qkv[r * at.width + at.k0 + i];
      v_cache[(now.position + r) * cache_width + i] = qkv[r * at.width + at.v0 + i];
    }
  for (int64_t r = 0; r < now.count; ++r)
    for (int64_t head = 0; head < attrs.heads; ++head) {
      const int64_t cached = head / at.group * d;
      std::vector<double> p(now.position + r + 1);
      for (size_t j = 0; j < p.size(); ++j)
        p[j] = at.scale * dot(qkv + at.q(r, head), k_cache + j * cache_width + cached, d);
      softmax(p);
      for (size_t j = 0; j < p.size(); ++j)
        for (int64_t i = 0; i < d; ++i)
          o[(r * attrs.heads + head) * d + i] += p[j] * v_cache[j * cache_width + cached + i];
    }
}

}  // namespace spillway::reference
