#include "kernels/cpu/gemm.h"

#include "base/error.h"

namespace spillway::cpu {
namespace {

// Columns of a task: the sums of its block of C stay in the second-level cache while k is walked
// through chunk by chunk.
constexpr int64_t kMostColumns = 512;
// Keeps the rows of the sums off a power of two apart, where they would compete for few cache
// lines.
constexpr int64_t kSumPadding = 16;
// Packing a row of A, or fetching a column of B, takes about as long as this many products.
constexpr int64_t kOverhead = 96;

float* f32_at(void* c, int64_t element) { return static_cast<float*>(c) + element; }

// How one product is cut. Cuts of m and n may depend on the number of threads, since the order of
// the additions into an element does not depend on them; cuts of k may not.
class Cut {
 public:
  int64_t k_chunk, m_chunk, n_chunk;
  int64_t m_blocks, n_blocks;
  bool direct;                              // the sums are C itself
  int64_t a_bytes, sum_columns, sum_bytes;  // a thread's packed A, and its sums

  Cut(const Gemm& g, const GemmEngine& e) {
    const int64_t chunks = std::max<int64_t>(1, ceil_div(g.k, e.k_chunk));
    k_chunk = round_up(std::max<int64_t>(1, ceil_div(g.k, chunks)), e.k_multiple);
    direct = g.c_dtype == Dtype::f32 && k_chunk >= g.k;
    choose_blocks(g, e);
    a_bytes = round_up(packed_a_bytes(e, m_chunk, k_chunk), 64);
    sum_columns = direct ? 0 : n_chunk + kSumPadding;
    sum_bytes = round_up(m_chunk * sum_columns * 4, 64);
  }

 private:
  // The blocks whose tasks, dealt to the threads, should end first.
  void choose_blocks(const Gemm& g, const GemmEngine& e) {
    const int64_t m_least = ceil_div(g.m, e.m_chunk), n_least = ceil_div(g.n, kMostColumns);
    double best = 0;
    for (int64_t m_try = m_least; m_try <= 2 * m_least + 8; ++m_try) {
      const int64_t mc = round_up(ceil_div(g.m, m_try), e.rows);
      if (mc > e.m_chunk) continue;
      for (int64_t n_try = n_least; n_try <= 2 * n_least + 16; ++n_try) {
        const int64_t nc = round_up(ceil_div(g.n, n_try), e.columns);
        const int64_t mb = ceil_div(g.m, mc), nb = ceil_div(g.n, nc);
        // A quarter of a task is lost at the end, where threads wait for the last.
        const double rounds = static_cast<double>(ceil_div(mb * nb, threads())) + 0.25;
        const double cost = rounds * static_cast<double>(mc * nc + kOverhead * (mc + nc));
        if (best > 0 && cost >= best) continue;
        best = cost;
        m_chunk = mc, n_chunk = nc, m_blocks = mb, n_blocks = nb;
      }
    }
  }
};

class Product {
 public:
  Product(const Gemm& g, const GemmEngine& e, const Cut& cut, const void* packed_b, char* slots)
      : g_(g),
        e_(e),
        cut_(cut),
        panel_(panel_bytes(e, g.k)),
        b_(static_cast<const char*>(packed_b)),
        slots_(slots) {}

  void run(int64_t task, int64_t slot) const {
    const int64_t i = task / cut_.n_blocks * cut_.m_chunk;
    const int64_t j = task % cut_.n_blocks * cut_.n_chunk;
    const int64_t rows = std::min(cut_.m_chunk, g_.m - i);
    const int64_t end = std::min(g_.n, j + cut_.n_chunk);
    char* a = slots_ + slot * (cut_.a_bytes + cut_.sum_bytes);
    for (int64_t k = 0; k < g_.k; k += cut_.k_chunk) {
      pack(i, rows, k, a);
      multiply(i, rows, j, end - j, k, a);
    }
    finish(i, rows, j, end - j, a);
  }

 private:
  void pack(int64_t i, int64_t rows, int64_t k, void* to) const {
    const int64_t size = size_of(g_.dtype);
    e_.pack_a(static_cast<const char*>(g_.a.data) + (i * g_.a.row + k * g_.a.column) * size,
              g_.a.row, g_.a.column, rows, std::min(cut_.k_chunk, g_.k - k), to);
  }
  float* sums(int64_t i, int64_t j, char* slot) const {
    if (cut_.direct) return f32_at(g_.c, i * g_.ldc + j);
    return reinterpret_cast<float*>(slot + cut_.a_bytes);
  }
  int64_t sum_stride() const { return cut_.direct ? g_.ldc : cut_.sum_columns; }
  void multiply(int64_t i, int64_t rows, int64_t j, int64_t columns, int64_t k, char* slot) const {
    e_.multiply(rows, columns, std::min(cut_.k_chunk, g_.k - k), slot,
                b_ + j / e_.columns * panel_ + k * e_.columns * e_.b_bytes, panel_,
                sums(i, j, slot), sum_stride(), k > 0 || (cut_.direct && g_.accumulate));
  }
  void finish(int64_t i, int64_t rows, int64_t j, int64_t columns, char* slot) const {
    if (cut_.direct && !g_.bias) return;
    const float* bias = g_.bias ? g_.bias + j : nullptr;
    char* c = static_cast<char*>(g_.c) + (i * g_.ldc + j) * size_of(g_.c_dtype);
    e_.finish(rows, columns, sums(i, j, slot), sum_stride(), bias, !cut_.direct && g_.accumulate, c,
              g_.c_dtype, g_.ldc);
  }

  const Gemm& g_;
  const GemmEngine& e_;
  const Cut& cut_;
  const int64_t panel_;
  const char* b_;
  char* slots_;
};

}  // namespace

const GemmEngine& gemm_engine(Dtype dtype, Isa isa) {
  if (dtype == Dtype::f32) return isa == Isa::avx2 ? avx2::kGemmF32 : avx512::kGemmF32;
  switch (isa) {
    case Isa::avx2:
      return avx2::kGemmBf16;
    case Isa::avx512:
      return avx512::kGemmBf16;
    case Isa::avx512bf16:
      return avx512bf16::kGemmBf16;
    case Isa::amx:
      return amx::kGemmBf16;
  }
  internal_error("gemm: no engine");
}

void* Scratch::take(int64_t bytes) {
  const int64_t begin = round_up(used_, 64);
  if (begin + bytes > bytes_)
    internal_error("{}: needs {} bytes of workspace or more, has {}", op_, begin + bytes, bytes_);
  used_ = begin + bytes;
  return data_ + begin;
}

int64_t gemm_packed_bytes(Dtype dtype, int64_t k, int64_t n) {
  return packed_b_bytes(gemm_engine(dtype, isa()), k, n);
}

void gemm_pack(Dtype dtype, const Matrix& b, int64_t k, int64_t n, void* packed) {
  const GemmEngine& e = gemm_engine(dtype, isa());
  const int64_t panel = panel_bytes(e, k);
  // Wide pieces where rows are contiguous in memory, long ones where columns are.
  const int64_t k_piece = b.column == 1 ? 256 : 2048, n_piece = b.column == 1 ? 1024 : 128;
  const int64_t k_pieces = ceil_div(k, k_piece), n_pieces = ceil_div(n, n_piece);
  for_quanta(k_pieces * n_pieces, [&](int64_t q) {
    const int64_t p = q / n_pieces * k_piece, j = q % n_pieces * n_piece;
    e.pack_b(static_cast<const char*>(b.data) + (p * b.row + j * b.column) * size_of(dtype), b.row,
             b.column, std::min(k_piece, k - p), std::min(n_piece, n - j),
             static_cast<char*>(packed) + j / e.columns * panel + p * e.columns * e.b_bytes, panel);
  });
}

void gemm(const Gemm& g, Scratch& scratch) {
  if (g.m == 0 || g.n == 0) return;
  const GemmEngine& e = gemm_engine(g.dtype, isa());
  const Cut cut(g, e);
  const int64_t mark = scratch.mark();
  const void* packed_b = g.packed_b;
  if (!packed_b) {
    void* to = scratch.take(gemm_packed_bytes(g.dtype, g.k, g.n));
    gemm_pack(g.dtype, g.b, g.k, g.n, to);
    packed_b = to;
  }
  const int64_t tasks = cut.m_blocks * cut.n_blocks;
  const int64_t slots = std::min<int64_t>(tasks, threads());
  char* memory = scratch.take_array<char>(slots * (cut.a_bytes + cut.sum_bytes));
  const Product product(g, e, cut, packed_b, memory);
  for_tasks(tasks, [&](int64_t task, int64_t slot) { product.run(task, slot); });
  scratch.release(mark);
}

}  // namespace spillway::cpu
