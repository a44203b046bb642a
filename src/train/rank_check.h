// Do the ranks still agree, and do they compute what they should? Between two steps: hashes of what
// all ranks hold alike are compared, and one micro-batch of every rank is run by two ranks, whose
// gradients must be equal bit for bit.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "data/dataset.h"
#include "runtime/device.h"
#include "train/session.h"

namespace spillway {

class RankCheck {
 public:
  // Collective. Without a "check" program in the session's plan there is nothing to check.
  RankCheck(Session& session, Communicator& communicator);

  // "", or why gradients are not compared: ranks on different devices or instruction sets do not
  // compute the same bits.
  const std::string& note() const { return note_; }

  // Fills micro-batch `micro` of `rank` of the step that was trained last.
  using Fill = std::function<void(int rank, int64_t micro, const MicroBatch&)>;

  // Collective, lanes idle; changes nothing that outlives a step. Throws SharedError(no_progress)
  // that names the step, the tensor and the ranks; with three or more copies of a tensor, the
  // ranks that the majority contradicts.
  void run(int64_t step, const Fill& fill);

  // Ranks whose micro-batches a rank runs: its own and this one.
  static int neighbour(int rank, int ranks) { return (rank + ranks - 1) % ranks; }

  // Cost of what has been run.
  int64_t runs() const { return runs_; }
  double weights_seconds() const { return weights_seconds_; }
  double gradients_seconds() const { return gradients_seconds_; }
  double seconds() const { return weights_seconds_ + gradients_seconds_; }

 private:
  void hash_weights(uint64_t* out);
  void digest_gradients(int rank, int64_t micro, const Fill& fill, uint64_t* out);
  void compare_weights(int64_t step) const;
  void compare_gradients(int64_t step) const;
  const uint64_t* row(int rank) const { return all_.data() + rank * row_size_; }
  std::string who(int rank) const;

  Session& session_;
  Communicator& communicator_;
  int program_ = -1;
  bool same_bits_ = true;
  std::string note_;
  std::vector<std::string> hosts_;      // by rank
  std::vector<Home> replicated_;        // what every rank holds whole
  std::vector<std::string> gradients_;  // names of the digested tensors
  std::vector<std::byte> chunk_;
  std::vector<uint64_t> own_, all_;  // hashes, own digests, the neighbour's digests; of all ranks
  std::vector<uint64_t> sequences_;
  size_t row_size_ = 0;
  int64_t runs_ = 0;
  double weights_seconds_ = 0, gradients_seconds_ = 0;
};

}  // namespace spillway
