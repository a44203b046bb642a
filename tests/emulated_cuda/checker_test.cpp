// The checker and the emulated runtime themselves: right programs give no report, and each kind of
// wrong one is told with its source line.
// links: cuda_emulated
#include <cuda_bf16.h>
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "tests/emulated_cuda/checker_kernels.h"
#include "tests/emulated_cuda/report.h"
#include "tests/emulated_cuda/runtime.h"

namespace spillway {
namespace {

using emulated::Report;

#define CHECK_CUDA(call) ASSERT_EQ(call, cudaSuccess)

// Device memory for one test.
template <class T>
class Buffer {
 public:
  explicit Buffer(size_t count) : count_(count) {
    EXPECT_EQ(cudaMalloc(reinterpret_cast<void**>(&data_), count * sizeof(T)), cudaSuccess);
  }
  explicit Buffer(const std::vector<T>& values) : Buffer(values.size()) {
    EXPECT_EQ(cudaMemcpy(data_, values.data(), count_ * sizeof(T), cudaMemcpyHostToDevice),
              cudaSuccess);
  }
  ~Buffer() {
    cudaDeviceSynchronize();
    cudaFree(data_);
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  T* get() const { return data_; }
  std::vector<T> values() const {
    std::vector<T> host(count_);
    EXPECT_EQ(cudaMemcpy(host.data(), data_, count_ * sizeof(T), cudaMemcpyDeviceToHost),
              cudaSuccess);
    return host;
  }

 private:
  size_t count_;
  T* data_ = nullptr;
};

std::vector<float> counting(size_t count) {
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = static_cast<float>(i % 97) - 40;
  return values;
}

std::string kinds() {
  std::string all;
  for (const Report& r : emulated::take_reports()) all += r.kind + ": " + r.text + "\n";
  return all;
}

void expect_report(const std::string& kind, const std::string& part) {
  const std::string all = kinds();
  EXPECT_NE(all.find(kind + ": "), std::string::npos) << "no " << kind << " in\n" << all;
  EXPECT_NE(all.find(part), std::string::npos) << "no '" << part << "' in\n" << all;
}

class Checker : public testing::Test {
 protected:
  void SetUp() override {
    emulated::take_reports();
    CHECK_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CHECK_CUDA(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
  }
  void TearDown() override {
    EXPECT_EQ(kinds(), "");
    cudaStreamDestroy(stream);
    cudaStreamDestroy(other);
  }
  void finish() { CHECK_CUDA(cudaDeviceSynchronize()); }
  cudaStream_t stream = nullptr, other = nullptr;
};

TEST_F(Checker, RightKernelsGiveRightResults) {
  const std::vector<float> in = counting(1024);
  Buffer<float> a(in), b(1024), s(8);
  cuda::twice(a.get(), b.get(), 1024, 0, stream);
  cuda::sums(b.get(), s.get(), 8, cuda::Flaw::none, stream);
  finish();
  const std::vector<float> doubled = b.values(), sums = s.values();
  for (size_t i = 0; i < 1024; ++i) ASSERT_EQ(doubled[i], 2 * in[i]);
  for (size_t block = 0; block < 8; ++block) {
    float sum = 0;
    for (size_t i = 0; i < 128; ++i) sum += doubled[block * 128 + i];
    EXPECT_EQ(sums[block], sum);
  }
  Buffer<float> through(32);
  cuda::through_shared(a.get(), through.get(), cuda::CopyFlaw::none, stream);
  finish();
  for (size_t i = 0; i < 32; ++i) EXPECT_EQ(through.values()[i], in[127 - i]);
}

TEST_F(Checker, MatrixInstructionsMultiply) {
  std::vector<__nv_bfloat16> a(256), b(128);
  for (size_t i = 0; i < 256; ++i) a[i] = __float2bfloat16(static_cast<float>(i % 13) - 6);
  for (size_t i = 0; i < 128; ++i) b[i] = __float2bfloat16(static_cast<float>(i % 7) - 3);
  Buffer<__nv_bfloat16> left(a), right(b);
  for (bool transposed : {false, true}) {
    Buffer<float> d(128);
    cuda::multiply(left.get(), right.get(), d.get(), transposed, stream);
    finish();
    const std::vector<float> got = d.values();
    for (size_t m = 0; m < 16; ++m)
      for (size_t n = 0; n < 8; ++n) {
        float sum = 0;
        for (size_t k = 0; k < 16; ++k)
          sum += __bfloat162float(a[m * 16 + k]) *
                 __bfloat162float(b[transposed ? k * 8 + n : n * 16 + k]);
        ASSERT_EQ(got[m * 8 + n], sum) << m << ' ' << n << (transposed ? " transposed" : "");
      }
  }
}

TEST_F(Checker, FindsWrongSharedMemory) {
  Buffer<float> in(counting(512)), out(4);
  const std::pair<cuda::Flaw, std::pair<const char*, const char*>> flaws[] = {
      {cuda::Flaw::no_barrier, {"race", "checker_kernels.cu:"}},
      {cuda::Flaw::reused_early, {"race", "checker_kernels.cu:"}},
      {cuda::Flaw::unwritten, {"uninitialised", "checker_kernels.cu:"}},
      {cuda::Flaw::beyond_shared, {"out of bounds", "checker_kernels.cu:"}},
      {cuda::Flaw::divergent_barrier, {"divergent barrier", "sum_kernel (checker_kernels.cu"}},
      {cuda::Flaw::half_mask, {"deadlock", "sum_kernel (checker_kernels.cu"}},
  };
  for (const auto& [flaw, expected] : flaws) {
    SCOPED_TRACE(static_cast<int>(flaw));
    cuda::sums(in.get(), out.get(), 4, flaw, stream);
    finish();
    expect_report(expected.first, expected.second);
  }
}

TEST_F(Checker, FindsUnfinishedCopies) {
  Buffer<float> in(counting(128)), out(32);
  cuda::through_shared(in.get(), out.get(), cuda::CopyFlaw::no_wait, stream);
  finish();
  expect_report("unfinished cp.async", "checker_kernels.cu:");
  cuda::through_shared(in.get(), out.get(), cuda::CopyFlaw::no_barrier, stream);
  finish();
  expect_report("race", "checker_kernels.cu:");
  cuda::through_shared(in.get(), out.get(), cuda::CopyFlaw::overwritten, stream);
  finish();
  expect_report("race", "checker_kernels.cu:");
}

TEST_F(Checker, FindsWrongDeviceMemory) {
  Buffer<float> in(counting(64)), out(64), unwritten(64), four(4);
  cuda::twice(in.get(), out.get(), 68, 0, stream);
  finish();
  expect_report("out of bounds", "0 bytes beyond the 256 device bytes");
  cuda::twice(unwritten.get(), out.get(), 64, 0, stream);
  finish();
  expect_report("uninitialised", "checker_kernels.cu:");
  cuda::twice(in.get(), out.get(), 60, 1, stream);
  finish();
  expect_report("misaligned", "checker_kernels.cu:");
  for (bool reads : {false, true}) {
    cuda::collide(four.get(), reads, stream);
    finish();
    expect_report("race", "another block");
  }
  const float on_host = 1;
  cuda::dereference(&on_host, out.get(), stream);
  finish();
  expect_report("illegal address", "dereference_kernel");
}

TEST_F(Checker, SyncwarpOrdersTheLanesOfAWarp) {
  Buffer<int> in(std::vector<int>(32, 7)), out(32);
  cuda::exchange(in.get(), out.get(), true, stream);
  finish();
  EXPECT_EQ(kinds(), "");
  cuda::exchange(in.get(), out.get(), false, stream);
  finish();
  expect_report("race", "exchange_kernel");
}

TEST_F(Checker, FindsMissingWaits) {
  Buffer<float> in(counting(256)), a(256), b(256);
  cudaEvent_t done;
  CHECK_CUDA(cudaEventCreateWithFlags(&done, cudaEventDisableTiming));
  for (bool waits : {true, false}) {
    SCOPED_TRACE(waits);
    CHECK_CUDA(cudaMemsetAsync(a.get(), 0, 1024, stream));
    CHECK_CUDA(cudaMemsetAsync(b.get(), 0, 1024, stream));
    finish();
    cuda::twice(in.get(), a.get(), 256, 0, stream);  // read after write
    CHECK_CUDA(cudaEventRecord(done, stream));
    if (waits) {
      CHECK_CUDA(cudaStreamWaitEvent(other, done, 0));
    }
    cuda::twice(a.get(), b.get(), 256, 0, other);
    finish();
    if (waits) {
      EXPECT_EQ(kinds(), "");
    } else {
      expect_report("missing wait", "twice_kernel");
    }
    cuda::twice(a.get(), b.get(), 256, 0, stream);  // write after two reads
    cuda::sums(a.get(), in.get(), 1, cuda::Flaw::none, other);
    finish();
    EXPECT_EQ(kinds(), "");
    cuda::sums(a.get(), in.get(), 1, cuda::Flaw::none, other);
    CHECK_CUDA(cudaEventRecord(done, other));
    cuda::sums(a.get(), b.get(), 1, cuda::Flaw::none, stream);
    if (waits) {
      CHECK_CUDA(cudaStreamWaitEvent(stream, done, 0));
    }
    CHECK_CUDA(cudaMemsetAsync(a.get(), 0, 512, stream));
    finish();
    if (waits) {
      EXPECT_EQ(kinds(), "");
    } else {
      expect_report("missing wait", "fill of 512 bytes");
    }
  }
  CHECK_CUDA(cudaEventDestroy(done));
}

TEST_F(Checker, FindsTheHostInPinnedBuffers) {
  float* pinned = nullptr;
  CHECK_CUDA(cudaHostAlloc(reinterpret_cast<void**>(&pinned), 8192, 0));
  for (int i = 0; i < 2048; ++i) pinned[i] = 1;
  Buffer<float> device(512);
  volatile float* host = pinned;
  CHECK_CUDA(cudaMemcpyAsync(device.get(), pinned, 1024, cudaMemcpyHostToDevice, stream));
  EXPECT_EQ(host[3], 1);  // reading what is read is fine
  host[256] = 2;          // so is writing beside it
  EXPECT_EQ(kinds(), "");
  finish();
  host[3] = 2;
  CHECK_CUDA(cudaMemcpyAsync(device.get(), pinned, 1024, cudaMemcpyHostToDevice, stream));
  host[3] = 3;
  expect_report("pinned buffer in flight", "writes byte 12 of a pinned buffer of 1024 bytes");
  finish();
  emulated::take_reports();
  CHECK_CUDA(cudaMemcpyAsync(pinned, device.get(), 1024, cudaMemcpyDeviceToHost, stream));
  static_cast<void>(host[200]);
  expect_report("pinned buffer in flight", "reads byte 800 of a pinned buffer");
  finish();
  EXPECT_EQ(host[200], 1);
  CHECK_CUDA(cudaMemcpyAsync(pinned, device.get(), 1024, cudaMemcpyDeviceToHost, stream));
  CHECK_CUDA(cudaMemcpyAsync(device.get(), pinned, 1024, cudaMemcpyHostToDevice, other));
  finish();
  expect_report("missing wait", "copy of 1024 bytes");
  CHECK_CUDA(cudaFreeHost(pinned));
}

TEST_F(Checker, FindsUseAfterFreeAndUnwrittenCopies) {
  Buffer<float> out(64), unwritten(1024), in(counting(64));
  float* freed = nullptr;
  CHECK_CUDA(cudaMalloc(reinterpret_cast<void**>(&freed), 256));
  CHECK_CUDA(cudaMemset(freed, 0, 256));
  CHECK_CUDA(cudaFree(freed));
  cuda::twice(freed, out.get(), 64, 0, stream);
  finish();
  expect_report("use after free", "(freed)");
  CHECK_CUDA(cudaMemcpyAsync(unwritten.get(), in.get(), 256, cudaMemcpyDeviceToDevice, stream));
  finish();
  EXPECT_EQ(kinds(), "");
  std::vector<float> host(1024);
  CHECK_CUDA(cudaMemcpy(host.data(), unwritten.get(), 4096, cudaMemcpyDeviceToHost));
  expect_report("uninitialised", "copies 3840 bytes that nothing wrote, from byte 256");
  CHECK_CUDA(cudaMemcpy(host.data(), in.get(), 260, cudaMemcpyDeviceToHost));
  expect_report("out of bounds", "copy of 260 bytes");
}

TEST_F(Checker, HoldsAnOpToItsOperands) {
  Buffer<float> arena(counting(512));
  const auto at = [&](size_t element) {
    return reinterpret_cast<uintptr_t>(arena.get() + element);
  };
  {
    const emulated::declared::Scope scope({{at(0), at(64), false}, {at(128), at(192), true}});
    cuda::twice(arena.get(), arena.get() + 128, 64, 0, stream);
    finish();
    EXPECT_EQ(kinds(), "");
    cuda::twice(arena.get(), arena.get() + 128, 68, 0, stream);
    finish();
    expect_report("undeclared access", "reads byte 256 of the 2048 device bytes");
    cuda::twice(arena.get() + 128, arena.get(), 64, 0, stream);  // an operand that is only read
    finish();
    expect_report("undeclared access", "checker_kernels.cu:");
    CHECK_CUDA(cudaMemsetAsync(arena.get() + 128, 0, 260, stream));
    finish();
    expect_report("undeclared access", "fill of 260 bytes");
  }
  cuda::twice(arena.get() + 128, arena.get(), 64, 0, stream);
  finish();
}

TEST_F(Checker, LibrariesDeclareWhatTheyTouch) {
  Buffer<float> a(counting(64)), b(64);
  emulated::Work work;
  work.name = "library call";
  work.run = [&] {
    emulated::reads(a.get(), 256);
    emulated::writes(b.get(), 256);
    std::memcpy(b.get(), a.get(), 256);
  };
  {
    emulated::Call call("library");
    emulated::enqueue(stream, work);
  }
  cuda::twice(b.get(), a.get(), 64, 0, other);
  finish();
  expect_report("missing wait", "library call");
  bool arrived = false;
  work.ready = [&] { return arrived; };
  work.waits_for_peers = true;
  {
    emulated::Call call("library");
    emulated::enqueue(stream, work);
  }
  EXPECT_EQ(cudaStreamQuery(stream), cudaErrorNotReady);
  arrived = true;
  finish();
}

}  // namespace
}  // namespace spillway
