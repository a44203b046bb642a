#include "data/dataset.h"

#include <algorithm>

#include "base/error.h"
#include "base/hash.h"
#include "data/shuffle.h"

namespace spillway {

void Dataset::Split::add(size_t file, int64_t first_token, int64_t tokens, int64_t context) {
  const int64_t count = tokens > context ? (tokens - 1) / context : 0;
  if (count == 0) return;
  parts.push_back({file, first_token, samples});
  samples += count;
}

void Dataset::Split::read(const std::vector<TokenFile>& files, int64_t sample, int64_t context,
                          int32_t* out) const {
  const auto after =
      std::upper_bound(parts.begin(), parts.end(), sample,
                       [](int64_t value, const Part& part) { return value < part.first_sample; });
  const Part& part = *(after - 1);
  files[part.file].read(part.first_token + (sample - part.first_sample) * context, context + 1,
                        out);
}

Dataset::Dataset(const DataConfig& config, int64_t vocab, int64_t context, uint64_t seed)
    : context_(context), vocab_(vocab), seed_(seed) {
  if (config.train.empty()) bad_input("data.train: no files, expected at least one");
  if (context < 1) bad_input("model.context: found {}, expected at least 1", context);
  if (vocab < 1 || vocab > INT32_MAX) {
    bad_input("model.vocab: found {}, expected 1 to {}", vocab, INT32_MAX);
  }
  if (!(config.validation >= 0.0 && config.validation < 1.0)) {
    bad_input("data.validation: found {}, expected a fraction from 0 to below 1",
              config.validation);
  }
  if (config.validation > 0.0 && !config.validation_files.empty()) {
    bad_input("data.validation: found both a fraction and files, expected one of them");
  }
  files_.reserve(config.train.size() + config.validation_files.size());
  for (const std::string& path : config.train) {
    const TokenFile& file = files_.emplace_back(path, config.tokenizer, vocab);
    const int64_t held_out =
        static_cast<int64_t>(static_cast<double>(file.count()) * config.validation);
    const int64_t used = file.count() - held_out;
    if (used < context + 1) {
      bad_input("{}: {} tokens to train on{}, expected at least one sample of context + 1 = {}",
                path, used, held_out > 0 ? " beside the validation part" : "", context + 1);
    }
    train_.add(files_.size() - 1, 0, used, context);
    validation_.add(files_.size() - 1, used, held_out, context);
    total_tokens_ += file.count();
  }
  for (const std::string& path : config.validation_files) {
    const TokenFile& file = files_.emplace_back(path, config.tokenizer, vocab);
    if (file.count() < context + 1) {
      bad_input("{}: {} tokens, expected at least one sample of context + 1 = {}", path,
                file.count(), context + 1);
    }
    validation_.add(files_.size() - 1, 0, file.count(), context);
    total_tokens_ += file.count();
  }
  if (config.validation > 0.0 && validation_.samples == 0) {
    bad_input(
        "data.validation: {} of the tokens of every file gives no sample of context + 1 = {} "
        "tokens; raise it or set 0",
        config.validation, context + 1);
  }
}

int64_t Dataset::train_sample_at(uint64_t position) const {
  const uint64_t n = static_cast<uint64_t>(train_.samples);
  return static_cast<int64_t>(shuffled(position % n, n, seed_, position / n));
}

BatchReader::BatchReader(const Dataset& dataset, const BatchShape& shape)
    : dataset_(dataset), shape_(shape) {
  if (shape.micro_batch < 1 || shape.ranks < 1 || shape.batch < 1 ||
      shape.batch % (shape.micro_batch * shape.ranks) != 0) {
    bad_input("train.batch: found {}, expected a multiple of micro_batch · ranks = {} · {}",
              shape.batch, shape.micro_batch, shape.ranks);
  }
  sample_.resize(dataset.context() + 1);
  start_.resize(dataset.vocab() + 1);
}

void BatchReader::set_row(int64_t row, const MicroBatch& out) {
  const int64_t context = dataset_.context();
  std::copy_n(sample_.begin(), context, out.tokens.begin() + row * context);
  std::copy_n(sample_.begin() + 1, context, out.targets.begin() + row * context);
  out.hashes[row] = hash_bytes(sample_.data(), context * sizeof(int32_t));
}

void BatchReader::sort_rows(const MicroBatch& out) {
  const int64_t rows = this->rows();
  std::fill(start_.begin(), start_.end(), 0);
  for (int64_t i = 0; i < rows; ++i) ++start_[out.tokens[i] + 1];
  for (size_t v = 1; v < start_.size(); ++v) start_[v] += start_[v - 1];
  for (int64_t i = 0; i < rows; ++i) {
    out.token_order[start_[out.tokens[i]]++] = static_cast<int32_t>(i);
  }
}

void BatchReader::fill(uint64_t step, int64_t micro, const MicroBatch& out) {
  const uint64_t first = (step - 1) * static_cast<uint64_t>(shape_.batch) +
                         (micro * shape_.ranks + shape_.rank) * shape_.micro_batch;
  for (int64_t row = 0; row < shape_.micro_batch; ++row) {
    dataset_.read_train(dataset_.train_sample_at(first + row), sample_.data());
    set_row(row, out);
  }
  sort_rows(out);
}

int64_t BatchReader::fill_validation(int64_t index, const MicroBatch& out) {
  const int64_t first = (index * shape_.ranks + shape_.rank) * shape_.micro_batch;
  const int64_t context = dataset_.context();
  int64_t live = 0;
  for (int64_t row = 0; row < shape_.micro_batch; ++row) {
    if (first + row < dataset_.validation_samples()) {
      dataset_.read_validation(first + row, sample_.data());
      set_row(row, out);
      ++live;
    } else {
      std::fill_n(out.tokens.begin() + row * context, context, 0);
      std::fill_n(out.targets.begin() + row * context, context, -1);
      out.hashes[row] = 0;
    }
  }
  sort_rows(out);
  return live;
}

int64_t BatchReader::validation_batches() const {
  const int64_t at_once = shape_.micro_batch * shape_.ranks;
  return (dataset_.validation_samples() + at_once - 1) / at_once;
}

uint64_t token_hash(std::span<const uint64_t> gathered, const BatchShape& shape) {
  const int64_t micro_batches = shape.micro_batches();
  if (static_cast<int64_t>(gathered.size()) != shape.batch) {
    internal_error("token_hash: {} sequence hashes for a batch of {}", gathered.size(),
                   shape.batch);
  }
  Hasher hasher;
  for (int64_t micro = 0; micro < micro_batches; ++micro) {
    for (int rank = 0; rank < shape.ranks; ++rank) {
      hasher.bytes(gathered.data() + (rank * micro_batches + micro) * shape.micro_batch,
                   shape.micro_batch * sizeof(uint64_t));
    }
  }
  return hasher.digest();
}

}  // namespace spillway
