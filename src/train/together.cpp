#include "train/together.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <vector>

namespace spillway {
namespace {

struct Outcome {
  int32_t code = 0;
  char message[2044] = {};
};

}  // namespace

void together(Communicator& communicator, const std::function<void()>& body) {
  Outcome own;
  const auto failed = [&](ExitCode code, const char* what) {
    own.code = static_cast<int32_t>(code);
    std::strncpy(own.message, what, sizeof own.message - 1);
  };
  try {
    body();
  } catch (const Error& e) {
    failed(e.code(), e.what());
  } catch (const std::exception& e) {
    failed(ExitCode::internal, e.what());
  }
  std::vector<Outcome> all(static_cast<size_t>(communicator.size()));
  communicator.gather(&own, sizeof own, all.data());
  for (const Outcome& o : all)
    if (o.code != 0) throw SharedError(static_cast<ExitCode>(o.code), o.message);
}

void on_rank_0(Communicator& communicator, const std::function<void()>& body) {
  together(communicator, [&] {
    if (communicator.rank() == 0) body();
  });
}

// Of doubles that are not negative the order is that of their bits.
double highest(Communicator& communicator, double value) {
  return std::bit_cast<double>(communicator.max(std::bit_cast<int64_t>(value)));
}

double lowest(Communicator& communicator, double value) {
  return std::bit_cast<double>(communicator.min(std::bit_cast<int64_t>(value)));
}

}  // namespace spillway
