// The communicator of a run of one rank. Needs no MPI, so that such a run starts at once.
#pragma once

#include <cstring>
#include <string>

#include "base/error.h"
#include "runtime/device.h"

namespace spillway {

class LocalCommunicator : public Communicator {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  int ranks_on_node() const override { return 1; }
  int node_count() const override { return 1; }
  void exchange(const ExchangeArgs& args) override {
    if (!args.parts.empty()) internal_error("an exchange with peers in a run of one rank");
  }
  void barrier() override {}
  void broadcast(void*, int64_t, int) override {}
  std::string broadcast_text(const std::string& text, int) override { return text; }
  int64_t max(int64_t value) override { return value; }
  int64_t min(int64_t value) override { return value; }
  std::string gather_text(const std::string& text) override { return text; }
  void gather(const void* data, int64_t bytes, void* out) override {
    std::memcpy(out, data, static_cast<size_t>(bytes));
  }
  void abort() noexcept override {}
};

}  // namespace spillway
