// Every CUDA kernel against the double reference, on the ops' own cases and on odd shapes: results,
// the same bits from run to run and wherever operands begin, no report. Built twice: for the
// emulated device, and as ops_cuda_test for a real one (scripts/gpu_check.sh).
// links: spillway_graph kernels_reference
#include <cuda_runtime_api.h>
#include <device_memory.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <memory>
#include <set>

#include "base/error.h"
#include "kernels/cuda/gemm.h"
#include "kernels/cuda/table.h"
#include "tests/kernels/ops_support.h"

namespace spillway {
namespace {

using test::Rng;
using test::Values;

constexpr int64_t kGemmWorkspace = 1 << 16;
constexpr WorkspaceRules kRules = {.threads = 1, .cuda = true, .gemm_workspace = kGemmWorkspace};

// Device memory of exactly one operand, `offset` elements behind a 256-byte border.
class Operand {
 public:
  explicit Operand(const TensorType& type, int64_t offset = 0)
      : type_(type), bytes_(type.dims.count() * size_of(type.dtype)) {
    const int64_t before = offset * size_of(type.dtype);
    allocated_ = static_cast<size_t>(before + bytes_);
    memory_ = test::device_allocate(allocated_);
    if (!memory_) internal_error("no device memory for a test");
    data_ = memory_ + before;
  }
  ~Operand() { test::device_release(memory_, allocated_); }
  Operand(const Operand&) = delete;
  Operand& operator=(const Operand&) = delete;
  char* data() const { return data_; }

  void put(const Values& v) {
    std::vector<char> host(static_cast<size_t>(bytes_));
    for (size_t i = 0; i < v.real.size(); ++i) {
      const float narrow = static_cast<float>(v.real[i]);
      const uint16_t half = test::bf16_bits(narrow);
      if (type_.dtype == Dtype::f32) std::memcpy(&host[4 * i], &narrow, 4);
      if (type_.dtype == Dtype::bf16) std::memcpy(&host[2 * i], &half, 2);
      if (type_.dtype == Dtype::f64) std::memcpy(&host[8 * i], &v.real[i], 8);
    }
    if (type_.dtype == Dtype::i32) std::memcpy(host.data(), v.integer.data(), host.size());
    if (type_.dtype == Dtype::u8) std::memcpy(host.data(), &v.scalars, sizeof v.scalars);
    cudaMemcpy(data_, host.data(), host.size(), cudaMemcpyHostToDevice);
  }
  // What nothing wrote is NaN.
  Values get() const {
    Values v = test::blank(type_, test::kNan);
    const size_t size = static_cast<size_t>(size_of(type_.dtype));
    const std::vector<char> host = bytes();
    for (size_t i = 0; i < v.real.size(); ++i) {
      const char* at = host.data() + i * size;
      if (!test::device_written(data_ + i * size, size)) continue;
      float narrow = 0;
      uint16_t half = 0;
      if (type_.dtype == Dtype::f32) std::memcpy(&narrow, at, 4);
      if (type_.dtype == Dtype::bf16) std::memcpy(&half, at, 2);
      v.real[i] = type_.dtype == Dtype::bf16 ? test::from_bf16(half) : narrow;
      if (type_.dtype == Dtype::f64) std::memcpy(&v.real[i], at, 8);
    }
    if (type_.dtype == Dtype::u8) std::memcpy(&v.scalars, host.data(), sizeof v.scalars);
    return v;
  }
  std::vector<char> bytes() const {
    return test::device_contents(data_, static_cast<size_t>(bytes_));
  }

 private:
  TensorType type_;
  int64_t bytes_;
  size_t allocated_ = 0;
  char *memory_ = nullptr, *data_ = nullptr;
};

using Pairs = std::vector<std::pair<int32_t, int32_t>>;

struct Way {  // to call a kernel
  bool accumulate = false;
  bool shifted = false;  // operands begin at odd elements
  Pairs aliased;         // beside the case's in_place
  int left_out = -1;     // output without data
};

struct Result {
  std::vector<Values> out;
  std::vector<std::vector<char>> bytes;
};

struct Stream {
  Stream() { cudaStreamCreateWithFlags(&handle, cudaStreamNonBlocking); }
  ~Stream() { cudaStreamDestroy(handle); }
  cudaStream_t handle = nullptr;
};

cuda::Gemm& gemm() {
  static cuda::Gemm only(kGemmWorkspace);
  return only;
}
cudaStream_t stream() {
  static Stream only;
  return only.handle;
}

Result run(OpKind kind, const OpCase& c, const std::vector<Values>& in,
           const std::vector<Values>& before, const Way& way) {
  Pairs shared = c.in_place;
  shared.insert(shared.end(), way.aliased.begin(), way.aliased.end());
  Rng offsets(c.in.size() + 17);
  const auto make = [&](const TensorType& type) {
    const bool moved = way.shifted && type.dtype != Dtype::u8;
    return std::make_unique<Operand>(type, moved ? test::between(offsets, 1, 7) : 0);
  };
  std::vector<std::unique_ptr<Operand>> inputs, outputs;
  for (const Values& v : in) {
    inputs.push_back(make(v.type));
    inputs.back()->put(v);
  }
  for (size_t o = 0; o < c.out.size(); ++o) {
    outputs.push_back(make(c.out[o]));
    if (way.accumulate && test::contains(c.accumulate, o)) outputs[o]->put(before[o]);
  }
  const OpDef& def = op_def(kind);
  const int64_t workspace_bytes = def.workspace ? def.workspace(c.attrs, c.in, kRules) : 0;
  const Operand workspace({Dtype::u8, Dims(std::max<int64_t>(workspace_bytes, 1))});
  KernelArgs args;
  args.attrs = &c.attrs;
  args.accumulate = way.accumulate;
  args.micro = c.attrs.micro_batches - 1;
  args.in_count = static_cast<int32_t>(in.size());
  args.out_count = static_cast<int32_t>(c.out.size());
  args.workspace = workspace_bytes > 0 ? workspace.data() : nullptr;
  args.workspace_bytes = workspace_bytes;
  for (size_t i = 0; i < in.size(); ++i)
    args.in[i] = {inputs[i]->data(), c.in[i].dtype, c.in[i].dims};
  for (size_t o = 0; o < c.out.size(); ++o)
    args.out[o] = {outputs[o]->data(), c.out[o].dtype, c.out[o].dims};
  std::set<size_t> overwritten;
  for (const auto& [o, i] : shared) {
    args.out[o].data = args.in[i].data;
    overwritten.insert(static_cast<size_t>(i));
  }
  if (way.left_out >= 0) args.out[way.left_out].data = nullptr;

  cuda::kernel(kind)(args, {stream(), &gemm(), 3});
  EXPECT_EQ(cudaStreamSynchronize(stream()), cudaSuccess);

  Result result;
  for (size_t i = 0; i < in.size(); ++i) {
    if (overwritten.count(i)) continue;
    Operand original(c.in[i]);
    original.put(in[i]);
    EXPECT_EQ(inputs[i]->bytes(), original.bytes()) << "changes input " << i;
  }
  for (size_t o = 0; o < c.out.size(); ++o) {
    const Operand* at = outputs[o].get();
    for (const auto& [out, i] : shared)
      if (out == static_cast<int32_t>(o)) at = inputs[static_cast<size_t>(i)].get();
    result.out.push_back(at->get());
    result.bytes.push_back(at->bytes());
  }
  for (const std::string& report : test::device_reports()) ADD_FAILURE() << report;
  return result;
}

void expect_same(const Result& a, const Result& b, const char* what, int except = -1) {
  for (size_t o = 0; o < a.bytes.size(); ++o)
    EXPECT_TRUE(static_cast<int>(o) == except || a.bytes[o] == b.bytes[o])
        << "other bits " << what << ", output " << o;
}

// Ops that take part in decoding run on the CPU backend, and tensor-core tiles exist for two head
// sizes.
bool supported(OpKind kind, const OpCase& c) {
  if (kind == OpKind::attention_cached || kind == OpKind::select_row || c.attrs.decode)
    return false;
  const bool tiled = kind == OpKind::attention || kind == OpKind::attention_grad;
  return !tiled || c.attrs.head_dim == 64 || c.attrs.head_dim == 128;
}

// Odd shapes
// ------------------------------------------------------------------------------------------------

OpCase attention_case(OpKind kind, Dtype dtype, int batch, int context, int heads, int kv_heads,
                      int head_dim) {
  OpCase c = op_def(kind).cases().front();
  c.label = "odd B" + std::to_string(batch) + " C" + std::to_string(context) + " H" +
            std::to_string(heads) + " K" + std::to_string(kv_heads) + " d" +
            std::to_string(head_dim);
  c.attrs.batch = batch;
  c.attrs.context = context;
  c.attrs.heads = heads;
  c.attrs.kv_heads = kv_heads;
  c.attrs.head_dim = head_dim;
  const int64_t rows = int64_t{batch} * context;
  const TensorType qkv = {dtype, Dims(rows, int64_t{heads + 2 * kv_heads} * head_dim)};
  const TensorType o = {dtype, Dims(rows, int64_t{heads} * head_dim)};
  const TensorType lse = {Dtype::f32, Dims(int64_t{batch} * heads, context)};
  if (kind == OpKind::attention) {
    c.in = {qkv};
    c.out = {o, lse};
  } else {
    c.in = {qkv, o, lse, o};
    c.out = {qkv};
  }
  return c;
}

void add_attention_cases(OpKind kind, Rng& rng, std::vector<OpCase>& all) {
  for (int context : {1, 17, 63, 64, 65, 129})
    for (int head_dim : {64, 128}) {
      const int kv_heads = static_cast<int>(test::between(rng, 1, 3));
      const int heads = kv_heads * static_cast<int>(test::between(rng, 1, 9 / kv_heads));
      const int batch = context < 60 ? 2 : 1;
      for (Dtype dtype : {Dtype::f32, Dtype::bf16})
        all.push_back(attention_case(kind, dtype, batch, context,
                                     std::min(heads, context > 64 ? 3 : 9),
                                     context > 64 ? 1 : kv_heads, head_dim));
    }
}

// The case with its rows and columns replaced.
OpCase resized(const OpCase& c, int64_t rows, int64_t columns, int64_t new_rows,
               int64_t new_columns) {
  OpCase other = c;
  other.label = "odd T" + std::to_string(new_rows) + " h" + std::to_string(new_columns);
  for (std::vector<TensorType>* types : {&other.in, &other.out})
    for (TensorType& t : *types)
      for (int i = 0; i < t.dims.rank; ++i) {
        const int64_t d = t.dims[i];
        t.dims.d[i] = d == rows          ? new_rows
                      : d == columns     ? new_columns
                      : d == 2 * columns ? 2 * new_columns
                                         : d;
      }
  return other;
}

void add_row_cases(OpKind kind, int64_t rows, int64_t columns, Rng& rng, std::vector<OpCase>& all) {
  std::vector<OpCase> like;  // of that shape, in both types and with every option
  for (const OpCase& c : op_def(kind).cases())
    if (c.in[0].dims[0] == rows && (c.in[0].dims[1] == columns || c.in[0].dims[1] == 2 * columns))
      like.push_back(c);
  ASSERT_FALSE(like.empty());
  const std::pair<int64_t, int64_t> shapes[] = {
      {1, 1024},
      {17, 1000},
      {63, 65},
      {3, 4104},
      {test::between(rng, 2, 140), test::between(rng, 1, 700)},
      {test::between(rng, 2, 140), 8 * test::between(rng, 1, 90)}};
  for (const auto& [new_rows, new_columns] : shapes)
    for (const OpCase& c : like) all.push_back(resized(c, rows, columns, new_rows, new_columns));
}

// Rows too wide for what threads hold in registers, in every way that a norm then goes.
void add_wide_cases(OpKind kind, std::vector<OpCase>& all) {
  for (const OpCase& c : op_def(kind).cases())
    if (c.in[0].dims[0] == 65 && c.attrs.residual)
      for (const auto& [rows, columns] :
           {std::pair<int64_t, int64_t>{2, 8200}, {2, 16392}, {1, 32776}})
        all.push_back(resized(c, 65, 129, rows, columns));
}

void add_rope_cases(OpKind kind, Rng& rng, std::vector<OpCase>& all) {
  for (int context : {1, 17, 63, 64, 65, 129})
    for (int head_dim : {64, 128})
      for (const OpCase& like : op_def(kind).cases()) {
        if (like.attrs.head_dim != 2 || like.attrs.decode) continue;
        if (like.attrs.llama3_rope && (like.attrs.qk_norm || context < 129)) continue;
        OpCase c = like;
        c.attrs.context = context;
        c.attrs.head_dim = head_dim;
        c.attrs.kv_heads = static_cast<int>(test::between(rng, 1, 3));
        c.attrs.heads = c.attrs.kv_heads * static_cast<int>(test::between(rng, 1, 3));
        c.attrs.batch = context < 60 ? 2 : 1;
        const Dims qkv(int64_t{c.attrs.batch} * context,
                       int64_t{c.attrs.heads + 2 * c.attrs.kv_heads} * head_dim);
        c.label = "odd C" + std::to_string(context) + " H" + std::to_string(c.attrs.heads) + " K" +
                  std::to_string(c.attrs.kv_heads) + " d" + std::to_string(head_dim) +
                  (c.attrs.qk_norm ? " qk_norm" : "") + (c.attrs.llama3_rope ? " llama3" : "");
        for (std::vector<TensorType>* types : {&c.in, &c.out})
          for (TensorType& t : *types) t.dims = t.dims.rank == 2 ? qkv : Dims(head_dim);
        all.push_back(c);
      }
}

// Rows of which many have one token, some tokens none.
void add_embedding_cases(OpKind kind, Rng& rng, std::vector<OpCase>& all) {
  for (const OpCase& like : op_def(kind).cases()) {
    if (like.attrs.context != 1 || like.attrs.decode) continue;
    for (int context : {1, 17, 63, 64, 65, 129}) {
      const int64_t vocab = test::between(rng, 1, 9),
                    h = 8 * test::between(rng, 1, 40) + 4 * (context % 2);
      const int64_t batch = test::between(rng, 1, 3), rows = batch * context;
      OpCase c = like;
      c.label = "odd V" + std::to_string(vocab) + " h" + std::to_string(h) + " B" +
                std::to_string(batch) + " C" + std::to_string(context);
      c.attrs.batch = static_cast<int32_t>(batch);
      c.attrs.context = context;
      c.attrs.vocab = static_cast<int32_t>(vocab);
      const Dims table(vocab, h), x(rows, h), positions(context, h);
      if (kind == OpKind::embedding) {
        c.in[0].dims = table, c.in[1].dims = Dims(rows), c.out[0].dims = x;
        if (c.attrs.bias) c.in[2].dims = positions;
      } else {
        c.in[0].dims = x, c.in[1].dims = c.in[2].dims = Dims(rows), c.out[0].dims = table;
        if (c.attrs.bias) c.out[1].dims = positions;
      }
      all.push_back(c);
    }
  }
}

// Sums that the GEMM library splits, rows that are no multiple of 16 bytes.
void add_matmul_cases(OpKind kind, Rng& rng, std::vector<OpCase>& all) {
  for (const OpCase& c : op_def(kind).cases()) {
    const int64_t rows = c.in[0].dims[0], columns = c.in[1].dims[0], inner = c.in[0].dims[1];
    if (kind != OpKind::matmul || rows != 65 || columns != 129 || inner != 33) continue;
    for (const int64_t k : {int64_t{257}, int64_t{513}, 2 * test::between(rng, 64, 300) + 1}) {
      OpCase other = c;
      other.label = "odd k" + std::to_string(k) + (c.attrs.bias ? " bias" : "");
      other.in[0].dims.d[1] = other.in[1].dims.d[1] = k;
      all.push_back(other);
    }
  }
}

// Rows of logits that a block walks in several turns, with and without whole groups of four.
void add_loss_cases(OpKind kind, std::vector<OpCase>& all) {
  for (const OpCase& c : op_def(kind).cases()) {
    if (c.in[0].dims[0] != 7) continue;
    for (const auto& [vocab, padded] : {std::pair{2049, 2050}, {4099, 4224}, {5000, 5000}}) {
      OpCase other = c;
      other.label = "odd V" + std::to_string(vocab) + "/" + std::to_string(padded);
      other.attrs.vocab = vocab;
      for (std::vector<TensorType>* types : {&other.in, &other.out})
        for (TensorType& t : *types)
          if (t.dims.rank == 2 && t.dims[0] == c.in[1].dims[0]) t.dims.d[0] = padded;
      all.push_back(other);
    }
  }
}

std::vector<OpCase> odd_cases(OpKind kind) {
  std::vector<OpCase> all;
  Rng rng(test::test_seed() + static_cast<uint64_t>(kind));
  switch (kind) {
    case OpKind::attention:
    case OpKind::attention_grad:
      add_attention_cases(kind, rng, all);
      break;
    case OpKind::rmsnorm:
    case OpKind::rmsnorm_grad:
    case OpKind::layernorm:
    case OpKind::layernorm_grad:
      add_row_cases(kind, 65, 129, rng, all);
      add_wide_cases(kind, all);
      break;
    case OpKind::rope:
    case OpKind::rope_grad:
      add_rope_cases(kind, rng, all);
      break;
    case OpKind::embedding:
    case OpKind::embedding_grad:
      add_embedding_cases(kind, rng, all);
      break;
    case OpKind::gelu:
    case OpKind::gelu_grad:
    case OpKind::swiglu:
    case OpKind::swiglu_grad:
      add_row_cases(kind, 17, 129, rng, all);
      break;
    case OpKind::bias_grad:
      add_row_cases(kind, 33, 17, rng, all);
      break;
    case OpKind::norm_finish: {  // more than one tile of partial sums
      OpCase c = op_def(kind).cases().front();
      c.label = "odd P2100 L3";
      c.in[0].dims = Dims(2100);
      c.in[1].dims = Dims(3);
      all.push_back(c);
      break;
    }
    case OpKind::matmul:
      add_matmul_cases(kind, rng, all);
      break;
    case OpKind::head_loss:
    case OpKind::head_loss_grad:
      add_loss_cases(kind, all);
      break;
    default:
      break;
  }
  return all;
}

// ------------------------------------------------------------------------------------------------

class CudaOp : public testing::TestWithParam<OpKind> {
 protected:
  void check(const OpCase& c, bool accumulate) {
    const OpKind kind = GetParam();
    Rng rng = test::rng_of(kind, c);
    const std::vector<Values> in = test::draw_inputs(kind, c, rng);
    std::vector<Values> before, expected;
    for (size_t o = 0; o < c.out.size(); ++o) {
      before.push_back(test::blank(c.out[o], test::kNan));
      if (accumulate && test::contains(c.accumulate, o)) test::fill_normal(before[o], rng, 0, 1);
    }
    expected = before;
    test::run_reference(kind, c.attrs, in, expected, c.in_place, test::call_of(c, accumulate));

    const Result once = run(kind, c, in, before, {accumulate, false, {}, -1});
    for (size_t o = 0; o < c.out.size(); ++o) {
      SCOPED_TRACE("output " + std::to_string(o));
      const bool narrow = c.out[o].dtype == Dtype::bf16;
      test::expect_close(once.out[o], expected[o], narrow ? c.bf16_tolerance : c.f32_tolerance);
      if (c.out[o].dtype == Dtype::u8)
        test::expect_same_scalars(once.out[o].scalars, expected[o].scalars);
    }
    expect_same(run(kind, c, in, before, {accumulate, false, {}, -1}), once, "in a second run");
    expect_same(run(kind, c, in, before, {accumulate, true, {}, -1}), once, "at other offsets");
    for (const auto& alias : c.may_alias) {
      if (accumulate && test::contains(c.accumulate, alias.first)) continue;
      expect_same(run(kind, c, in, before, {accumulate, false, {alias}, -1}), once, "in place");
    }
  }
};

TEST_P(CudaOp, MatchesTheReference) {
  std::vector<OpCase> all = op_def(GetParam()).cases();
  for (const OpCase& c : odd_cases(GetParam())) all.push_back(c);
  const char* wanted = std::getenv("SPILLWAY_TEST_CASES");  // part of the labels
  if (wanted)
    std::erase_if(all, [&](const OpCase& c) { return c.label.find(wanted) == std::string::npos; });
  ASSERT_FALSE(all.empty()) << "no case is called " << wanted;
  for (const OpCase& c : all)
    for (bool accumulate : {false, true}) {
      if (accumulate && c.accumulate.empty()) continue;
      SCOPED_TRACE(c.label + (c.in[0].dtype == Dtype::bf16 ? " bf16" : "") +
                   (accumulate ? ", accumulating" : ""));
      if (supported(GetParam(), c)) {
        check(c, accumulate);
      } else {
        Rng rng = test::rng_of(GetParam(), c);
        EXPECT_THROW(run(GetParam(), c, test::draw_inputs(GetParam(), c, rng), {}, {}), Error);
      }
      if (HasFailure()) return;  // one case says enough
    }
}

INSTANTIATE_TEST_SUITE_P(All, CudaOp, testing::ValuesIn(test::all_ops()),
                         [](const auto& info) { return std::string(op_def(info.param).name); });

TEST(CudaOps, NormsLeaveOutWhatIsNotWanted) {
  for (OpKind kind : {OpKind::rmsnorm, OpKind::layernorm})
    for (const OpCase& c : op_def(kind).cases()) {
      SCOPED_TRACE(c.label);
      Rng rng = test::rng_of(kind, c);
      const std::vector<Values> in = test::draw_inputs(kind, c, rng);
      const Result whole = run(kind, c, in, {}, {});
      for (int left_out = 0; left_out < static_cast<int>(c.out.size()); ++left_out)
        expect_same(run(kind, c, in, {}, {false, false, {}, left_out}), whole, "without one output",
                    left_out);
    }
}

// A norm recomputed from the sum that it gave out has the bits of the first time.
TEST(CudaOps, NormsOfTheirSumHaveTheSameBits) {
  for (OpKind kind : {OpKind::rmsnorm, OpKind::layernorm})
    for (const OpCase& c : op_def(kind).cases()) {
      if (!c.attrs.residual) continue;
      SCOPED_TRACE(c.label);
      Rng rng = test::rng_of(kind, c);
      std::vector<Values> in = test::draw_inputs(kind, c, rng);
      const Result first = run(kind, c, in, {}, {});
      OpCase alone = c;
      alone.attrs.residual = false;
      alone.in.erase(alone.in.begin());
      alone.out.erase(alone.out.begin());
      alone.may_alias.clear();
      in.erase(in.begin());
      in[0] = first.out[0];
      const Result second = run(kind, alone, in, {}, {});
      EXPECT_EQ(second.bytes[0], first.bytes[1]);
      EXPECT_EQ(second.bytes[1], first.bytes[2]);
    }
}

TEST(CudaOps, SkippedUpdateWritesNothing) {
  for (const OpCase& c : op_def(OpKind::adamw).cases()) {
    SCOPED_TRACE(c.label);
    Rng rng = test::rng_of(OpKind::adamw, c);
    std::vector<Values> in = test::draw_inputs(OpKind::adamw, c, rng);
    in[0].real[0] = test::kNan;
    in[1].scalars.skip_update = 1;
    const Result result = run(OpKind::adamw, c, in, {}, {});
    for (size_t i = 0; i < 3; ++i) EXPECT_EQ(result.out[i].real, in[i + 2].real);
    for (size_t o = 3; o < c.out.size(); ++o)
      for (double x : result.out[o].real) ASSERT_TRUE(std::isnan(x));
  }
}

TEST(CudaOps, NonFiniteNormOrLossIsSeen) {
  for (const OpCase& c : op_def(OpKind::norm_finish).cases())
    for (size_t operand : {0, 1})
      for (double bad : {test::kNan, HUGE_VAL}) {
        SCOPED_TRACE(c.label);
        Rng rng = test::rng_of(OpKind::norm_finish, c);
        std::vector<Values> in = test::draw_inputs(OpKind::norm_finish, c, rng);
        EXPECT_EQ(run(OpKind::norm_finish, c, in, {}, {}).out[0].scalars.skip_update, 0u);
        in[operand].real.back() = bad;
        EXPECT_EQ(run(OpKind::norm_finish, c, in, {}, {}).out[0].scalars.skip_update, 1u);
      }
}

}  // namespace
}  // namespace spillway
