// Communication between ranks over MPI.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "runtime/device.h"

namespace spillway {

// The communicator of this process: MPI if a launcher started it as one of several ranks, else a
// LocalCommunicator. Call once, early (it sets malloc up for MPI's large temporaries). Throws
// Error(bad_input) for a launcher whose ranks cannot find each other.
std::unique_ptr<Communicator> make_communicator();

std::string mpi_library();  // "Open MPI v4.1.4"; may be asked before MPI is initialised

// One a process: the constructor initialises MPI, the destructor ends it (unless aborted, when
// peers may be gone: the process then ends without MPI_Finalize). Waiting spins for a moment, then
// sleeps between looks, so that ranks that share cores do not starve each other's kernels.
// `exchange` may run on a lane's thread while the main thread uses the helpers: the two have
// communicators of their own.
class MpiCommunicator : public Communicator {
 public:
  MpiCommunicator();
  ~MpiCommunicator() override;
  MpiCommunicator(const MpiCommunicator&) = delete;
  MpiCommunicator& operator=(const MpiCommunicator&) = delete;

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  int ranks_on_node() const override { return ranks_on_node_; }
  int rank_on_node() const override { return rank_on_node_; }
  int node_count() const override { return node_count_; }
  void exchange(const ExchangeArgs& args) override;
  void barrier() override;
  void broadcast(void* data, int64_t bytes, int root) override;
  std::string broadcast_text(const std::string& text, int root) override;
  int64_t max(int64_t value) override;
  int64_t min(int64_t value) override;
  std::string gather_text(const std::string& text) override;
  void gather(const void* data, int64_t bytes, void* out) override;
  void abort() noexcept override { aborted_.store(true); }

 private:
  struct Mpi;  // keeps mpi.h out of this header

  std::unique_ptr<Mpi> mpi_;
  int rank_ = 0, size_ = 1, ranks_on_node_ = 1, rank_on_node_ = 0, node_count_ = 1;
  std::atomic<bool> aborted_{false};
};

}  // namespace spillway
