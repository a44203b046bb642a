// Ops whose CUDA kernels round in the very places where the CPU's do: the same bits on both, also
// for zeros, subnormals, huge values and what overflows. Only the payload of a NaN may differ.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <memory>

#include "kernels/cpu/parallel.h"
#include "kernels/cpu/table.h"
#include "kernels/cuda/table.h"
#include "tests/emulated_cuda/report.h"
#include "tests/kernels/ops_support.h"

namespace spillway {
namespace {

using test::Rng;
using test::Values;

using Bytes = std::vector<char>;

Bytes bytes_of(const Values& v) {
  Bytes bytes(static_cast<size_t>(v.type.dims.count() * size_of(v.type.dtype)));
  for (size_t i = 0; i < v.real.size(); ++i) {
    const float narrow = static_cast<float>(v.real[i]);
    const uint16_t half = test::bf16_bits(narrow);
    if (v.type.dtype == Dtype::f32) std::memcpy(&bytes[4 * i], &narrow, 4);
    if (v.type.dtype == Dtype::bf16) std::memcpy(&bytes[2 * i], &half, 2);
    if (v.type.dtype == Dtype::f64) std::memcpy(&bytes[8 * i], &v.real[i], 8);
  }
  if (v.type.dtype == Dtype::i32) std::memcpy(bytes.data(), v.integer.data(), bytes.size());
  if (v.type.dtype == Dtype::u8) std::memcpy(bytes.data(), &v.scalars, sizeof v.scalars);
  return bytes;
}

// Operands as the call finds them (`in`) and as it leaves them.
struct Operands {
  std::vector<Bytes> in, out;
};

KernelArgs args_of(const OpCase& c, bool accumulate) {
  KernelArgs args;
  args.attrs = &c.attrs;
  args.accumulate = accumulate;
  args.micro = c.attrs.micro_batches - 1;
  args.in_count = static_cast<int32_t>(c.in.size());
  args.out_count = static_cast<int32_t>(c.out.size());
  for (size_t i = 0; i < c.in.size(); ++i) args.in[i] = {nullptr, c.in[i].dtype, c.in[i].dims};
  for (size_t o = 0; o < c.out.size(); ++o) args.out[o] = {nullptr, c.out[o].dtype, c.out[o].dims};
  return args;
}

std::vector<Bytes> on_cpu(OpKind kind, const OpCase& c, Operands operands, bool accumulate) {
  KernelArgs args = args_of(c, accumulate);
  for (size_t i = 0; i < c.in.size(); ++i) args.in[i].data = operands.in[i].data();
  for (size_t o = 0; o < c.out.size(); ++o) args.out[o].data = operands.out[o].data();
  for (const auto& [o, i] : c.in_place) args.out[o].data = args.in[i].data;
  cpu::set_threads(2);
  cpu::kernel(kind)(args);
  for (const auto& [o, i] : c.in_place)
    operands.out[static_cast<size_t>(o)] = operands.in[static_cast<size_t>(i)];
  return operands.out;
}

class DeviceCopy {
 public:
  explicit DeviceCopy(const Bytes& bytes) : size_(bytes.size()) {
    EXPECT_EQ(cudaMalloc(&data_, size_), cudaSuccess);
    EXPECT_EQ(cudaMemcpy(data_, bytes.data(), size_, cudaMemcpyHostToDevice), cudaSuccess);
  }
  ~DeviceCopy() { cudaFree(data_); }
  DeviceCopy(const DeviceCopy&) = delete;
  DeviceCopy& operator=(const DeviceCopy&) = delete;
  void* data() const { return data_; }
  Bytes bytes() const {
    Bytes host(size_);
    EXPECT_EQ(cudaMemcpy(host.data(), data_, size_, cudaMemcpyDeviceToHost), cudaSuccess);
    return host;
  }

 private:
  size_t size_;
  void* data_ = nullptr;
};

std::vector<Bytes> on_cuda(OpKind kind, const OpCase& c, const Operands& operands,
                           bool accumulate) {
  std::vector<std::unique_ptr<DeviceCopy>> in, out;
  for (const Bytes& b : operands.in) in.push_back(std::make_unique<DeviceCopy>(b));
  for (const Bytes& b : operands.out) out.push_back(std::make_unique<DeviceCopy>(b));
  KernelArgs args = args_of(c, accumulate);
  for (size_t i = 0; i < in.size(); ++i) args.in[i].data = in[i]->data();
  for (size_t o = 0; o < out.size(); ++o) args.out[o].data = out[o]->data();
  for (const auto& [o, i] : c.in_place) args.out[o].data = args.in[i].data;
  static const cudaStream_t stream = [] {
    cudaStream_t made = nullptr;
    EXPECT_EQ(cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking), cudaSuccess);
    return made;
  }();
  cuda::kernel(kind)(args, {stream, nullptr, 3});
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  for (const emulated::Report& r : emulated::take_reports())
    ADD_FAILURE() << r.kind << ": " << r.text;
  std::vector<Bytes> results;
  for (size_t o = 0; o < out.size(); ++o) {
    const DeviceCopy* at = out[o].get();
    for (const auto& [to, i] : c.in_place)
      if (to == static_cast<int32_t>(o)) at = in[static_cast<size_t>(i)].get();
    results.push_back(at->bytes());
  }
  return results;
}

// Some elements replaced by values at the edges of f32.
void strew_extremes(Values& v, Rng& rng) {
  static const double kEdges[] = {0.0, -0.0, 1e-45, -3e-39, 1e-20, -1e-12, 3e19, -3e38};
  for (double& x : v.real)
    if (test::between(rng, 0, 7) == 0)
      x = test::rounded(kEdges[test::between(rng, 0, 7)], v.type.dtype);
}

// The bits of element i, with one bit pattern for every NaN: IEEE leaves its payload open.
uint64_t bits_of(const Bytes& bytes, Dtype dtype, size_t i) {
  uint64_t bits = 0;
  const size_t size = static_cast<size_t>(size_of(dtype));
  std::memcpy(&bits, &bytes[i * size], size);
  const bool nan = (dtype == Dtype::f32 && (bits & 0x7FFFFFFF) > 0x7F800000) ||
                   (dtype == Dtype::bf16 && (bits & 0x7FFF) > 0x7F80);
  return nan ? ~uint64_t{0} : bits;
}

void expect_same(const std::vector<TensorType>& types, const std::vector<Bytes>& cuda,
                 const std::vector<Bytes>& cpu) {
  for (size_t o = 0; o < types.size(); ++o)
    for (size_t i = 0; i < static_cast<size_t>(types[o].dims.count()); ++i)
      ASSERT_EQ(bits_of(cuda[o], types[o].dtype, i), bits_of(cpu[o], types[o].dtype, i))
          << "output " << o << " element " << i;
}

class SameBits : public testing::TestWithParam<OpKind> {};

TEST_P(SameBits, AsOnTheCpu) {
  const OpKind kind = GetParam();
  int compared = 0;
  for (const OpCase& c : op_def(kind).cases()) {
    if (c.attrs.decode) continue;  // sampling runs on the CPU backend
    for (bool extreme : {false, true})
      for (bool accumulate : {false, true}) {
        if (accumulate && c.accumulate.empty()) continue;
        SCOPED_TRACE(c.label + (extreme ? ", extreme values" : "") +
                     (accumulate ? ", accumulating" : ""));
        Rng rng = test::rng_of(kind, c);
        std::vector<Values> in = test::draw_inputs(kind, c, rng);
        if (extreme)
          for (Values& v : in) strew_extremes(v, rng);
        if (kind == OpKind::adamw)
          for (double& v : in[4].real) v = std::abs(v);
        Operands operands;
        for (const Values& v : in) operands.in.push_back(bytes_of(v));
        for (const TensorType& t : c.out) {
          Values v = test::blank(t);
          test::fill_normal(v, rng, 0, 1);
          operands.out.push_back(bytes_of(v));
        }
        expect_same(c.out, on_cuda(kind, c, operands, accumulate),
                    on_cpu(kind, c, operands, accumulate));
        ++compared;
        if (HasFailure()) return;
      }
  }
  EXPECT_GT(compared, 0);
}

INSTANTIATE_TEST_SUITE_P(All, SameBits,
                         testing::Values(OpKind::adamw, OpKind::add, OpKind::rank_sum,
                                         OpKind::norm_finish, OpKind::embedding,
                                         OpKind::embedding_grad),
                         [](const auto& info) { return std::string(op_def(info.param).name); });

}  // namespace
}  // namespace spillway
