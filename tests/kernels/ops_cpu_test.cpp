// The CPU kernels of all ops against the reference: results, the same bits on any number of threads
// and from run to run, nothing touched beyond operands and a workspace of exactly the stated size.
// links: spillway_graph kernels_reference kernels_cpu

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <set>

#include "kernels/cpu/isa.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/table.h"
#include "tests/kernels/ops_support.h"

namespace spillway {
namespace {

using test::Rng;
using test::Values;

constexpr int64_t kCanary = 64;
constexpr uint8_t kCanaryByte = 0xA5;
constexpr uint8_t kGarbage = 0xFF;  // NaN in every float type

// Bytes between two canaries, at a multiple of 64.
class Guarded {
 public:
  explicit Guarded(int64_t bytes = 0)
      : bytes_(bytes), memory_(new (std::align_val_t{64}) uint8_t[bytes + 2 * kCanary]) {
    std::memset(memory_.get(), kCanaryByte, bytes + 2 * kCanary);
    std::memset(data(), kGarbage, bytes);
  }
  uint8_t* data() const { return memory_.get() + kCanary; }
  int64_t bytes() const { return bytes_; }
  bool intact() const {
    for (int64_t i = 0; i < kCanary; ++i)
      if (memory_[i] != kCanaryByte || memory_[kCanary + bytes_ + i] != kCanaryByte) return false;
    return true;
  }
  std::vector<uint8_t> contents() const { return {data(), data() + bytes_}; }

 private:
  struct Free {
    void operator()(uint8_t* p) const { ::operator delete[](p, std::align_val_t{64}); }
  };
  int64_t bytes_;
  std::unique_ptr<uint8_t[], Free> memory_;
};

Guarded guarded(const TensorType& type) { return Guarded(type.dims.count() * size_of(type.dtype)); }

void write(const Values& v, const Guarded& to) {
  uint8_t* data = to.data();
  for (size_t i = 0; i < v.real.size(); ++i) {
    const float narrow = static_cast<float>(v.real[i]);
    const uint16_t half = test::bf16_bits(narrow);
    if (v.type.dtype == Dtype::f32) std::memcpy(data + 4 * i, &narrow, 4);
    if (v.type.dtype == Dtype::bf16) std::memcpy(data + 2 * i, &half, 2);
    if (v.type.dtype == Dtype::f64) std::memcpy(data + 8 * i, &v.real[i], 8);
  }
  if (v.type.dtype == Dtype::i32) std::memcpy(data, v.integer.data(), 4 * v.integer.size());
  if (v.type.dtype == Dtype::u8) std::memcpy(data, &v.scalars, sizeof v.scalars);
}

Values read(const TensorType& type, const Guarded& from) {
  Values v = test::blank(type);
  for (size_t i = 0; i < v.real.size(); ++i) {
    float narrow = 0;
    uint16_t half = 0;
    if (type.dtype == Dtype::f32) std::memcpy(&narrow, from.data() + 4 * i, 4);
    if (type.dtype == Dtype::bf16) std::memcpy(&half, from.data() + 2 * i, 2);
    v.real[i] = type.dtype == Dtype::bf16 ? test::from_bf16(half) : narrow;
    if (type.dtype == Dtype::f64) std::memcpy(&v.real[i], from.data() + 8 * i, 8);
  }
  if (type.dtype == Dtype::u8) std::memcpy(&v.scalars, from.data(), sizeof v.scalars);
  return v;
}

using Pairs = std::vector<std::pair<int32_t, int32_t>>;

// One way to call a kernel.
struct Way {
  int threads = 1;
  bool accumulate = false;
  Pairs aliased;      // beside the case's in_place
  int left_out = -1;  // output without data
};

struct Result {
  std::vector<Values> out;
  std::vector<std::vector<uint8_t>> bytes;  // of `out`
};

Result run_cpu(OpKind kind, const OpCase& c, const std::vector<Values>& in,
               const std::vector<Values>& before, const Way& way) {
  Pairs shared = c.in_place;
  shared.insert(shared.end(), way.aliased.begin(), way.aliased.end());
  std::vector<Guarded> inputs, outputs;
  for (const Values& v : in) {
    inputs.push_back(guarded(v.type));
    write(v, inputs.back());
  }
  std::set<size_t> overwritten;
  for (size_t o = 0; o < c.out.size(); ++o) {
    outputs.push_back(guarded(c.out[o]));
    if (way.accumulate && test::contains(c.accumulate, o)) write(before[o], outputs[o]);
  }

  const OpDef& def = op_def(kind);
  const int64_t workspace_bytes =
      def.workspace ? def.workspace(c.attrs, c.in, {.threads = way.threads}) : 0;
  const Guarded workspace(workspace_bytes);
  KernelArgs args;
  args.attrs = &c.attrs;
  args.accumulate = way.accumulate;
  args.micro = c.attrs.micro_batches - 1;
  args.in_count = static_cast<int32_t>(in.size());
  args.out_count = static_cast<int32_t>(c.out.size());
  args.workspace = workspace_bytes > 0 ? workspace.data() : nullptr;
  args.workspace_bytes = workspace_bytes;
  for (size_t i = 0; i < in.size(); ++i)
    args.in[i] = {inputs[i].data(), c.in[i].dtype, c.in[i].dims};
  for (size_t o = 0; o < c.out.size(); ++o)
    args.out[o] = {outputs[o].data(), c.out[o].dtype, c.out[o].dims};
  for (const auto& [o, i] : shared) {
    args.out[o].data = args.in[i].data;
    overwritten.insert(i);
  }
  if (way.left_out >= 0) args.out[way.left_out].data = nullptr;

  cpu::set_threads(way.threads);
  cpu::kernel(kind)(args);

  EXPECT_TRUE(workspace.intact()) << "writes beyond its workspace of " << workspace_bytes;
  Result result;
  for (size_t i = 0; i < in.size(); ++i) {
    EXPECT_TRUE(inputs[i].intact()) << "writes beyond input " << i;
    if (overwritten.count(i)) continue;
    const Guarded original = guarded(c.in[i]);
    write(in[i], original);
    EXPECT_EQ(inputs[i].contents(), original.contents()) << "changes input " << i;
  }
  for (size_t o = 0; o < c.out.size(); ++o) {
    EXPECT_TRUE(outputs[o].intact()) << "writes beyond output " << o;
    const Guarded* at = &outputs[o];
    for (const auto& [out, i] : shared)
      if (out == static_cast<int32_t>(o)) at = &inputs[i];
    result.out.push_back(read(c.out[o], *at));
    result.bytes.push_back(at->contents());
  }
  return result;
}

void expect_same(const Result& a, const Result& b, const std::string& what, int except = -1) {
  for (size_t o = 0; o < a.bytes.size(); ++o)
    EXPECT_TRUE(static_cast<int>(o) == except || a.bytes[o] == b.bytes[o])
        << "other bits " << what << ", output " << o;
}

class CpuOp : public testing::TestWithParam<OpKind> {
 protected:
  void check(const OpCase& c, bool accumulate);
};

void CpuOp::check(const OpCase& c, bool accumulate) {
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

  const Result once = run_cpu(kind, c, in, before, {1, accumulate, {}, -1});
  for (size_t o = 0; o < c.out.size(); ++o) {
    SCOPED_TRACE("output " + std::to_string(o));
    const bool narrow = c.out[o].dtype == Dtype::bf16;
    test::expect_close(once.out[o], expected[o], narrow ? c.bf16_tolerance : c.f32_tolerance);
    if (c.out[o].dtype == Dtype::u8)
      test::expect_same_scalars(once.out[o].scalars, expected[o].scalars);
  }
  for (int threads : {1, 2, 3}) {
    const Result again = run_cpu(kind, c, in, before, {threads, accumulate, {}, -1});
    expect_same(again, once, "with " + std::to_string(threads) + " threads");
  }
  for (const auto& alias : c.may_alias) {
    if (accumulate && test::contains(c.accumulate, alias.first)) continue;
    const Result in_place = run_cpu(kind, c, in, before, {2, accumulate, {alias}, -1});
    expect_same(in_place, once, "in place");
  }
}

TEST_P(CpuOp, MatchesTheReference) {
  for (const OpCase& c : op_def(GetParam()).cases())
    for (bool accumulate : {false, true}) {
      if (accumulate && c.accumulate.empty()) continue;
      SCOPED_TRACE(c.label + (accumulate ? ", accumulating" : ""));
      check(c, accumulate);
      if (HasFailure()) return;  // one case says enough
    }
}

INSTANTIATE_TEST_SUITE_P(All, CpuOp, testing::ValuesIn(test::all_ops()),
                         [](const auto& info) { return std::string(op_def(info.param).name); });

TEST(CpuOps, NormsLeaveOutWhatIsNotWanted) {
  for (OpKind kind : {OpKind::rmsnorm, OpKind::layernorm})
    for (const OpCase& c : op_def(kind).cases()) {
      SCOPED_TRACE(c.label);
      Rng rng = test::rng_of(kind, c);
      const std::vector<Values> in = test::draw_inputs(kind, c, rng);
      const Result whole = run_cpu(kind, c, in, {}, {});
      for (int left_out = 0; left_out < static_cast<int>(c.out.size()); ++left_out)
        expect_same(run_cpu(kind, c, in, {}, {2, false, {}, left_out}), whole, "without one output",
                    left_out);
    }
}

// A norm recomputed from the sum that it gave out has the bits of the first time.
TEST(CpuOps, NormsOfTheirSumHaveTheSameBits) {
  for (OpKind kind : {OpKind::rmsnorm, OpKind::layernorm})
    for (const OpCase& c : op_def(kind).cases()) {
      if (!c.attrs.residual) continue;
      SCOPED_TRACE(c.label);
      Rng rng = test::rng_of(kind, c);
      std::vector<Values> in = test::draw_inputs(kind, c, rng);
      const Result first = run_cpu(kind, c, in, {}, {});
      OpCase alone = c;
      alone.attrs.residual = false;
      alone.in.erase(alone.in.begin());
      alone.out.erase(alone.out.begin());
      alone.may_alias.clear();
      in.erase(in.begin());
      in[0] = first.out[0];
      const Result second = run_cpu(kind, alone, in, {}, {});
      EXPECT_EQ(second.bytes[0], first.bytes[1]);
      EXPECT_EQ(second.bytes[1], first.bytes[2]);
    }
}

// Values that overflow a careless exponential.
TEST(CpuOps, ExtremeInputsStayFinite) {
  for (OpKind kind :
       {OpKind::gelu, OpKind::gelu_grad, OpKind::swiglu, OpKind::swiglu_grad, OpKind::attention,
        OpKind::attention_grad, OpKind::head_loss, OpKind::head_loss_grad})
    for (OpCase c : op_def(kind).cases()) {
      SCOPED_TRACE(std::string(op_def(kind).name) + " " + c.label);
      c.attrs.micro_batches = 1;
      if (kind == OpKind::head_loss || kind == OpKind::head_loss_grad) c.out.back().dims = Dims(1);
      Rng rng = test::rng_of(kind, c);
      std::vector<Values> in = test::draw_inputs(kind, c, rng);
      for (double& x : in[0].real) x = test::rounded(300 * x, in[0].type.dtype);
      if (kind == OpKind::attention_grad) {
        const auto o =
            test::forward_outputs(OpKind::attention, c.attrs, {in[0]}, {c.in[1], c.in[2]});
        in[1] = o[0];
        in[2] = o[1];
      }
      const Result result = run_cpu(kind, c, in, {}, {});
      for (const Values& v : result.out)
        for (double x : v.real) ASSERT_TRUE(std::isfinite(x));
    }
}

TEST(CpuOps, SkippedUpdateWritesNothing) {
  for (const OpCase& c : op_def(OpKind::adamw).cases()) {
    SCOPED_TRACE(c.label);
    Rng rng = test::rng_of(OpKind::adamw, c);
    std::vector<Values> in = test::draw_inputs(OpKind::adamw, c, rng);
    in[0].real[0] = test::kNan;
    in[1].scalars.skip_update = 1;
    const Result result = run_cpu(OpKind::adamw, c, in, {}, {2, false, {}, -1});
    for (int i = 0; i < 3; ++i) {
      const Guarded original = guarded(c.in[i + 2]);
      write(in[i + 2], original);
      EXPECT_EQ(result.bytes[i], original.contents());
    }
    for (size_t o = 3; o < c.out.size(); ++o)
      EXPECT_EQ(result.bytes[o], std::vector<uint8_t>(result.bytes[o].size(), kGarbage));
  }
}

TEST(CpuOps, NonFiniteNormOrLossIsSeen) {
  for (OpCase c : op_def(OpKind::norm_finish).cases())
    for (int operand : {0, 1})
      for (double bad : {test::kNan, HUGE_VAL}) {
        SCOPED_TRACE(c.label);
        Rng rng = test::rng_of(OpKind::norm_finish, c);
        std::vector<Values> in = test::draw_inputs(OpKind::norm_finish, c, rng);
        EXPECT_EQ(run_cpu(OpKind::norm_finish, c, in, {}, {}).out[0].scalars.skip_update, 0u);
        in[operand].real.back() = bad;
        EXPECT_EQ(run_cpu(OpKind::norm_finish, c, in, {}, {}).out[0].scalars.skip_update, 1u);
      }
}

// The instruction set is chosen once per process, so each other one runs in a process of its own.
TEST(CpuOps, OnEveryInstructionSet) {
  if (std::getenv("SPILLWAY_ISA")) return;  // such a process
  std::error_code error;
  const std::string self = std::filesystem::read_symlink("/proc/self/exe", error).string();
  ASSERT_FALSE(error) << error.message();
  for (cpu::Isa isa : {cpu::Isa::avx2, cpu::Isa::avx512, cpu::Isa::avx512bf16, cpu::Isa::amx}) {
    if (isa == cpu::isa() || !cpu::supported(isa)) continue;
    const std::string command =
        fmt::format("SPILLWAY_ISA={} SPILLWAY_TEST_SEED={} '{}' --gtest_brief=1", cpu::name_of(isa),
                    test::test_seed(), self);
    EXPECT_EQ(std::system(command.c_str()), 0) << command;
  }
}

}  // namespace
}  // namespace spillway
