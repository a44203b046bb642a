#include "runtime/cuda/progress_words.h"

#include <cstring>

namespace spillway::cuda {

ProgressWords::ProgressWords(int lanes, int depth, const Place& place)
    : depth_(depth),
      instrs_(static_cast<size_t>(lanes * depth)),
      newest_(static_cast<size_t>(lanes)) {
  const size_t bytes = sizeof(Word) * static_cast<size_t>(lanes);
  check(cudaHostAlloc(reinterpret_cast<void**>(&words_), bytes,
                      cudaHostAllocPortable | cudaHostAllocMapped),
        "cudaHostAlloc of the progress words", place);
  std::memset(words_, 0, bytes);
  void* entry = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  constexpr unsigned kVersion = 12000;  // of the signature above
  check(cudaGetDriverEntryPointByVersion("cuStreamWriteValue64", &entry, kVersion,
                                         cudaEnableDefault, &found),
        "cudaGetDriverEntryPointByVersion", place);
  if (found != cudaDriverEntryPointSuccess || !entry)
    fail(ExitCode::internal,
         "{}: this driver does not offer cuStreamWriteValue64 (12.0 or later "
         "does); update the driver, or set hardware.backend to \"cpu\"",
         place.text());
  write_value_ = reinterpret_cast<WriteValue>(entry);
}

ProgressWords::~ProgressWords() {
  if (!leaked_ && words_) cudaFreeHost(words_);
}

void ProgressWords::issued(int lane, Ticket ticket, const Instr* instr) {
  instrs_[static_cast<size_t>(lane * depth_) + ticket % static_cast<Ticket>(depth_)].store(
      instr, std::memory_order_relaxed);
  newest_[static_cast<size_t>(lane)].store(ticket, std::memory_order_release);
}

void ProgressWords::advance(int lane, Ticket ticket, cudaStream_t stream, const Place& place) {
  const CUresult result = write_value_(stream, reinterpret_cast<CUdeviceptr>(&words_[lane].value),
                                       ticket, CU_STREAM_WRITE_VALUE_DEFAULT);
  if (result != CUDA_SUCCESS)
    fail(ExitCode::internal, "{}: cuStreamWriteValue64 failed with error {} of the driver",
         place.text(), static_cast<int>(result));
}

Ticket ProgressWords::completed(int lane) const {
  return __atomic_load_n(&words_[lane].value, __ATOMIC_ACQUIRE);
}

const Instr* ProgressWords::running(int lane) const {
  const Ticket newest = newest_[static_cast<size_t>(lane)].load(std::memory_order_acquire);
  const Ticket next = completed(lane) + 1;
  if (next > newest) return nullptr;
  return instrs_[static_cast<size_t>(lane * depth_) + next % static_cast<Ticket>(depth_)].load(
      std::memory_order_relaxed);
}

}  // namespace spillway::cuda
