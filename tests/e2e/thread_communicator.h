// Ranks as threads of one process: messages are copied straight from the sender's memory.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/error.h"
#include "runtime/device.h"

namespace spillway {

// What the ranks share. Outlives their communicators.
class ThreadWorld {
 public:
  explicit ThreadWorld(int ranks)
      : ranks_(ranks), slots_(ranks), queues_(static_cast<size_t>(ranks) * ranks) {}
  int ranks() const { return ranks_; }

  // Wakes and fails whatever blocks now or later.
  void abort() noexcept {
    const std::lock_guard lock(mutex_);
    aborted_ = true;
    changed_.notify_all();
  }

 private:
  friend class ThreadCommunicator;
  struct Message {
    const void* data;
    int64_t bytes;
    int* unread;  // of the sender's call
  };

  std::deque<Message>& queue(int from, int to) { return queues_[from * ranks_ + to]; }
  template <class Ready>
  void wait(std::unique_lock<std::mutex>& lock, Ready ready) {
    changed_.wait(lock, [&] { return aborted_ || ready(); });
    if (aborted_) fail(ExitCode::no_progress, "another rank has failed");
  }

  const int ranks_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool aborted_ = false;
  int arrived_ = 0;
  uint64_t round_ = 0;              // barriers passed
  std::vector<const void*> slots_;  // by rank: what it shows to the others
  std::vector<std::deque<Message>> queues_;
};

class ThreadCommunicator : public Communicator {
 public:
  ThreadCommunicator(ThreadWorld& world, int rank) : world_(world), rank_(rank) {}
  int rank() const override { return rank_; }
  int size() const override { return world_.ranks_; }
  int ranks_on_node() const override { return world_.ranks_; }
  int node_count() const override { return 1; }

  void exchange(const ExchangeArgs& args) override {
    std::unique_lock lock(world_.mutex_);
    int unread = 0;
    for (const ExchangeArgs::Part& part : args.parts) {
      if (!part.send) continue;
      part.each([&](int peer, char* data) {
        ++unread;
        world_.queue(rank_, peer).push_back({data, part.bytes, &unread});
      });
    }
    world_.changed_.notify_all();
    for (const ExchangeArgs::Part& part : args.parts) {
      if (part.send) continue;
      part.each([&](int peer, char* data) {
        auto& queue = world_.queue(peer, rank_);
        world_.wait(lock, [&] { return !queue.empty(); });
        const ThreadWorld::Message message = queue.front();
        queue.pop_front();
        if (message.bytes != part.bytes)
          internal_error("rank {} sends {} bytes where rank {} awaits {}", peer, message.bytes,
                         rank_, part.bytes);
        std::memcpy(data, message.data, static_cast<size_t>(part.bytes));
        --*message.unread;
      });
    }
    world_.changed_.notify_all();
    world_.wait(lock, [&] { return unread == 0; });
  }

  void barrier() override {
    std::unique_lock lock(world_.mutex_);
    const uint64_t round = world_.round_;
    if (++world_.arrived_ == world_.ranks_) {
      world_.arrived_ = 0;
      ++world_.round_;
      world_.changed_.notify_all();
      return;
    }
    world_.wait(lock, [&] { return world_.round_ != round; });
  }

  void gather(const void* data, int64_t bytes, void* out) override {
    show(data, [&](const std::vector<const void*>& all) {
      for (int r = 0; r < size(); ++r)
        std::memcpy(static_cast<char*>(out) + r * bytes, all[r], static_cast<size_t>(bytes));
    });
  }
  void broadcast(void* data, int64_t bytes, int root) override {
    show(data, [&](const std::vector<const void*>& all) {
      if (rank_ != root) std::memcpy(data, all[root], static_cast<size_t>(bytes));
    });
  }
  std::string broadcast_text(const std::string& text, int root) override {
    std::string result;
    show(&text, [&](const std::vector<const void*>& all) {
      result = *static_cast<const std::string*>(all[root]);
    });
    return result;
  }
  std::string gather_text(const std::string& text) override {
    std::string result;
    show(&text, [&](const std::vector<const void*>& all) {
      for (int r = 0; rank_ == 0 && r < size(); ++r)
        result += (r > 0 ? "\n" : "") + *static_cast<const std::string*>(all[r]);
    });
    return result;
  }
  int64_t max(int64_t value) override {
    const std::vector<int64_t> all = values(value);
    return *std::max_element(all.begin(), all.end());
  }
  int64_t min(int64_t value) override {
    const std::vector<int64_t> all = values(value);
    return *std::min_element(all.begin(), all.end());
  }
  void abort() noexcept override { world_.abort(); }

 private:
  // read(slots of all ranks) while every rank's `data` stands still.
  template <class Read>
  void show(const void* data, Read read) {
    {
      const std::lock_guard lock(world_.mutex_);
      world_.slots_[rank_] = data;
    }
    barrier();
    read(world_.slots_);
    barrier();
  }
  std::vector<int64_t> values(int64_t value) {
    std::vector<int64_t> all(size());
    gather(&value, sizeof value, all.data());
    return all;
  }

  ThreadWorld& world_;
  const int rank_;
};

}  // namespace spillway
