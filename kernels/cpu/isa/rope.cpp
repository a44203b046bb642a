// rope and its gradient, with the norm of queries and keys where a model has one.
#include "kernels/cpu/isa/kernel.h"
#include "kernels/cpu/rope_table.h"

namespace spillway::cpu::SPILLWAY_ISA {
namespace {

// cos and sin for consecutive positions: exact in double at every 64th, and from there one rotation
// a token, so that a position's bits depend on nothing else.
class Angles {
 public:
  explicit Angles(const RopeTable& table) : table_(table) {}

  void seek(int64_t position) {
    if (position == position_) return;
    if (position != position_ + 1 || position % kAnchor == 0) {
      position_ = position / kAnchor * kAnchor;
      rope_angles(table_, position_, cos_, sin_);
    }
    for (; position_ < position; ++position_) step();
    for (int64_t i = 0; i < table_.half; ++i) {
      cosines[i] = static_cast<float>(cos_[i]);
      sines[i] = static_cast<float>(sin_[i]);
    }
  }

  float cosines[kMaxRopeHalf], sines[kMaxRopeHalf];  // of the position last sought

 private:
  static constexpr int64_t kAnchor = 64;

  void step() {
    for (int64_t i = 0; i < table_.half; ++i) {
      const double c = cos_[i], s = sin_[i];
      cos_[i] = c * table_.step_cos[i] - s * table_.step_sin[i];
      sin_[i] = s * table_.step_cos[i] + c * table_.step_sin[i];
    }
  }

  const RopeTable& table_;
  int64_t position_ = -2;
  double cos_[kMaxRopeHalf], sin_[kMaxRopeHalf];
};

template <class T>
SPILLWAY_INLINE float inverse_rms(const T* x, int64_t width, float eps) {
  Sums squares = zero_sums();
  strips4(width, [&](int64_t i, auto live, int p) SPILLWAY_FLAT {
    const F v = load(x + i, live);
    squares.part[p] = fma(v, v, squares.part[p]);
  });
  return 1.0f / __builtin_sqrtf(sum(squares) * (1.0f / static_cast<float>(width)) + eps);
}

template <class T>
void rope_of(const KernelArgs& args) {
  constexpr int64_t kRows = 64;  // of one quantum
  const Attrs& attrs = *args.attrs;
  const int64_t half = attrs.head_dim / 2, width = row_length(args.in[0]);
  const int64_t rows = rows_of(args.in[0]);
  const int64_t rotated_heads = attrs.heads + attrs.kv_heads, rotated = rotated_heads * 2 * half;
  const bool normed = attrs.qk_norm;
  const float* qw = normed ? data<float>(args.in[1]) : nullptr;
  const float* kw = normed ? data<float>(args.in[2]) : nullptr;
  const int64_t start = attrs.decode ? data<StepScalars>(args.in[args.in_count - 1])->position : 0;
  const int64_t period = attrs.decode ? larger(rows, 1) : attrs.context;
  const T* in = data<T>(args.in[0]);
  T* out = data<T>(args.out[0]);
  RopeTable table;
  fill_rope_table(attrs, table);
  for_quanta(quotient_up(rows, kRows), [&](int64_t quantum) {
    Angles angles(table);
    const int64_t end = smaller(rows, (quantum + 1) * kRows);
    for (int64_t row = quantum * kRows; row < end; ++row) {
      angles.seek(start + row % period);
      for (int64_t head = 0; head < rotated_heads; ++head) {
        const T* from = in + row * width + head * 2 * half;
        T* to = out + row * width + head * 2 * half;
        const float* w = head < attrs.heads ? qw : kw;
        const F rstd = splat(normed ? inverse_rms(from, 2 * half, attrs.eps) : 1.0f);
        strips(half, [&](int64_t i, auto live) SPILLWAY_FLAT {
          F a = load(from + i, live), b = load(from + half + i, live);
          if (w) {
            a = a * rstd * load(w + i, live);
            b = b * rstd * load(w + half + i, live);
          }
          const F c = load(angles.cosines + i, live), s = load(angles.sines + i, live);
          store(to + i, fma(a, c, splat(0.0f) - b * s), live);
          store(to + half + i, fma(b, c, a * s), live);
        });
      }
      if (in == out) continue;
      strips(width - rotated, [&](int64_t i, auto live) SPILLWAY_FLAT {
        const int64_t at = row * width + rotated + i;
        store(out + at, load(in + at, live), live);
      });
    }
  });
}

// Rotates one head's gradient back: (a, b) → (a·c + b·s, b·c - a·s).
template <class T, class Then>
SPILLWAY_INLINE void rotate_back(const T* from, int64_t half, const Angles& angles,
                                 const Then& then) {
  strips(half, [&](int64_t i, auto live) SPILLWAY_FLAT {
    const F a = load(from + i, live), b = load(from + half + i, live);
    const F c = load(angles.cosines + i, live), s = load(angles.sines + i, live);
    then(i, live, fma(a, c, b * s), fma(b, c, splat(0.0f) - a * s));
  });
}

// One head's gradient through rotation and norm; adds the norm weight's to dw. `turned` is scratch.
template <class T>
void normed_head_grad(const T* from, const T* x, const float* w, int64_t half, float eps,
                      const Angles& angles, float* turned, float* dw, T* to) {
  const F rstd = splat(inverse_rms(x, 2 * half, eps));
  rotate_back(from, half, angles, [&](int64_t i, auto live, F a, F b) SPILLWAY_FLAT {
    store(turned + i, a, live);
    store(turned + half + i, b, live);
  });
  Sums dot = zero_sums();
  strips4(2 * half, [&](int64_t i, auto live, int p) SPILLWAY_FLAT {
    const F d = load(turned + i, live), xhat = load(x + i, live) * rstd;
    dot.part[p] = fma(d * load(w + i, live), xhat, dot.part[p]);
    store(dw + i, fma(d, xhat, load(dw + i, live)), live);
  });
  const F mean = splat(sum(dot) * (1.0f / static_cast<float>(2 * half)));
  strips(2 * half, [&](int64_t i, auto live) SPILLWAY_FLAT {
    const F xhat = load(x + i, live) * rstd, g = load(turned + i, live) * load(w + i, live);
    store(to + i, rstd * fma(splat(0.0f) - mean, xhat, g), live);
  });
}

template <class T>
void rope_grad_of(const KernelArgs& args) {
  const Attrs& attrs = *args.attrs;
  const int64_t half = attrs.head_dim / 2, width = row_length(args.in[0]);
  const int64_t rows = rows_of(args.in[0]), size = 2 * half;
  const int64_t rotated_heads = attrs.heads + attrs.kv_heads, rotated = rotated_heads * size;
  const bool normed = attrs.qk_norm;
  const T* in = data<T>(args.in[0]);
  const T* x = normed ? data<T>(args.in[1]) : nullptr;
  const float* qw = normed ? data<float>(args.in[2]) : nullptr;
  const float* kw = normed ? data<float>(args.in[3]) : nullptr;
  T* out = data<T>(args.out[0]);
  float* partial = static_cast<float*>(args.workspace);
  RopeTable table;
  fill_rope_table(attrs, table);
  const RowBlocks blocks = row_blocks(rows);
  for_quanta(blocks.count, [&](int64_t block) {
    Angles angles(table);
    float turned[2 * kMaxRopeHalf];
    float* dw = normed ? partial + block * 2 * size : nullptr;  // queries', then keys'
    if (normed)
      strips(2 * size,
             [&](int64_t i, auto live) SPILLWAY_FLAT { store(dw + i, splat(0.0f), live); });
    const int64_t end = smaller(rows, (block + 1) * blocks.step);
    for (int64_t row = block * blocks.step; row < end; ++row) {
      angles.seek(row % attrs.context);
      for (int64_t head = 0; head < rotated_heads; ++head) {
        const int64_t at = row * width + head * size;
        const bool query = head < attrs.heads;
        if (normed) {
          normed_head_grad(in + at, x + at, query ? qw : kw, half, attrs.eps, angles, turned,
                           query ? dw : dw + size, out + at);
        } else {
          rotate_back(in + at, half, angles, [&](int64_t i, auto live, F a, F b) SPILLWAY_FLAT {
            store(out + at + i, a, live);
            store(out + at + half + i, b, live);
          });
        }
      }
      if (in == out) continue;
      strips(width - rotated, [&](int64_t i, auto live) SPILLWAY_FLAT {
        const int64_t at = row * width + rotated + i;
        store(out + at, load(in + at, live), live);
      });
    }
  });
  if (!normed) return;
  add_blocks(partial, blocks.count, 2 * size, size, args.accumulate, data<float>(args.out[1]));
  add_blocks(partial + size, blocks.count, 2 * size, size, args.accumulate,
             data<float>(args.out[2]));
}

}  // namespace

void rope(const KernelArgs& args) {
  args.in[0].dtype == Dtype::bf16 ? rope_of<Bf16>(args) : rope_of<float>(args);
}
void rope_grad(const KernelArgs& args) {
  args.in[0].dtype == Dtype::bf16 ? rope_grad_of<Bf16>(args) : rope_grad_of<float>(args);
}

}  // namespace spillway::cpu::SPILLWAY_ISA
