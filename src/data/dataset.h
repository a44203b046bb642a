// The samples of a run, and which of them a step reads: a pure function of (seed, step), for any
// number of ranks. Nothing here allocates after construction.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "config/config.h"
#include "data/token_file.h"

namespace spillway {

// Samples of context + 1 tokens (inputs and the targets one further) every `context` tokens of
// every file; the tokens left over at a part's end are not used. Immutable after construction.
class Dataset {
 public:
  // Opens and checks all files. With `validation` set, the last fraction of the tokens of every
  // file is the validation part. Throws Error(bad_input) as TokenFile does, and where a training
  // file has fewer tokens than one sample or the validation part has none at all.
  Dataset(const DataConfig& config, int64_t vocab, int64_t context, uint64_t seed);

  int64_t context() const { return context_; }
  int64_t vocab() const { return vocab_; }
  int64_t train_samples() const { return train_.samples; }
  int64_t validation_samples() const { return validation_.samples; }  // 0: no validation part
  int64_t total_tokens() const { return total_tokens_; }  // of all files, validation included

  // The training sample at `position` of the endless stream, counted from 0: every epoch of
  // train_samples() positions holds every sample once, shuffled over all files by (seed, epoch).
  int64_t train_sample_at(uint64_t position) const;

  // Writes the context + 1 tokens of a sample (0 ≤ sample < train_samples()).
  void read_train(int64_t sample, int32_t* out) const {
    train_.read(files_, sample, context_, out);
  }
  void read_validation(int64_t sample, int32_t* out) const {
    validation_.read(files_, sample, context_, out);
  }

 private:
  struct Part {  // consecutive samples of one file
    size_t file = 0;
    int64_t first_token = 0;
    int64_t first_sample = 0;
  };
  struct Split {
    std::vector<Part> parts;  // ascending first_sample, none without samples
    int64_t samples = 0;
    void add(size_t file, int64_t first_token, int64_t tokens, int64_t context);
    void read(const std::vector<TokenFile>& files, int64_t sample, int64_t context,
              int32_t* out) const;
  };

  int64_t context_ = 0, vocab_ = 0, total_tokens_ = 0;
  uint64_t seed_ = 0;
  std::vector<TokenFile> files_;
  Split train_, validation_;
};

// How the `batch` sequences of a step are dealt: sequence (micro · ranks + rank) · micro_batch + j
// of the step is row j of that micro-batch on that rank.
struct BatchShape {
  int64_t batch = 0, micro_batch = 0;
  int rank = 0, ranks = 1;
  int64_t micro_batches() const { return batch / (micro_batch * ranks); }
};

// The caller's buffers for one micro-batch of T = micro_batch · context rows.
struct MicroBatch {
  std::span<int32_t> tokens;       // i32[T]
  std::span<int32_t> targets;      // i32[T]; -1: ignored
  std::span<int32_t> token_order;  // i32[T]: row indices stably sorted by token
  std::span<uint64_t> hashes;      // u64[micro_batch]: hash of each sequence's input tokens
};

// Fills micro-batches. Holds scratch, so one thread at a time; the dataset outlives it.
class BatchReader {
 public:
  // Throws Error(bad_input) where micro_batch · ranks does not divide batch.
  BatchReader(const Dataset& dataset, const BatchShape& shape);

  const BatchShape& shape() const { return shape_; }
  int64_t rows() const { return shape_.micro_batch * dataset_.context(); }

  // Micro-batch `micro` of this rank in training step `step` (from 1).
  void fill(uint64_t step, int64_t micro, const MicroBatch& out);

  // Micro-batch `index` of this rank over the validation samples in their fixed order. Sequences
  // past the end have tokens 0 and targets -1. Returns how many sequences are real.
  int64_t fill_validation(int64_t index, const MicroBatch& out);
  // Micro-batches that cover the validation part, the same on every rank.
  int64_t validation_batches() const;

 private:
  void set_row(int64_t row, const MicroBatch& out);  // from sample_
  void sort_rows(const MicroBatch& out);

  const Dataset& dataset_;
  BatchShape shape_;
  std::vector<int32_t> sample_;  // context + 1
  std::vector<int32_t> start_;   // vocab + 1: counting sort
};

// The hash of a step's global batch from its sequence hashes. `gathered` is
// u64[ranks][micro_batches][micro_batch], as a gather of every rank's hashes gives them; the result
// covers them in sample order, so that it does not depend on the number of ranks.
uint64_t token_hash(std::span<const uint64_t> gathered, const BatchShape& shape);

}  // namespace spillway
