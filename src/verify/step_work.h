// What one order of the work (a group size) asks of a device, by interval, read from its schedules:
// the constants of the linear program of certificate.h.
//
// Intervals are the compute lane's work on one bucket of neighbouring layers in one pass, in the
// step's first iteration, in the average of those between, and in its last.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "config/resources.h"
#include "verify/certificate.h"

namespace spillway::verify_detail {

enum class StreamPool : uint8_t { activations, parameters, gradients, state };
constexpr int kPools = 4;
// How layers stream by their updates: on the host these take no part, whenever they run.
enum class UpdateTime : uint8_t { end, rotated, on_host };
constexpr int kUpdateTimes = 3;

struct Span {
  std::string name;
  double times = 1;    // a step
  double seconds = 0;  // of compute that no choice changes
};

struct Moved {
  double in = 0, out = 0;  // bytes
  double in_copies = 0, out_copies = 0;
};

// What a ring's slots need at least, and which parts of a slot copies fill: begin and end.
struct Slot {
  double bytes = 0;
  std::set<std::pair<int64_t, int64_t>> filled;
};

// What streaming does to the units of one name in the layers of one bucket, by the position of
// their update; activations have one.
struct Streamed {
  std::map<int32_t, Moved> by_span;
  std::map<std::string, Slot> slots;  // by ring
  double home = 0;                    // bytes on the host
};

struct Choice {
  std::string name;
  int32_t bucket = 0;
  StreamPool pool = StreamPool::activations;
  int32_t layers = 0;
  double bytes = 0;
  bool streams = false, recomputes = false;
  std::array<double, 3> pinned{};  // layers, by Where
  std::array<Streamed, kUpdateTimes> streamed;
  std::string label() const { return name + "@" + std::to_string(bucket); }
};

// A forward node of the layers of a bucket, repeated by the backward pass for what it makes.
struct Repeat {
  int32_t bucket = 0;
  std::vector<int32_t> choices;  // that are recomputed by it
  std::vector<int32_t> before;   // repeats that it needs
  double seconds = 0;
};

// Updates of a bucket's layers.
struct Update {
  std::array<std::map<int32_t, double>, 2> seconds;  // on the device, by span: at the end; rotated
  // Bytes on the host: that its processors move; that come from the device, and go back to it.
  double work = 0, gradients = 0, parameters = 0;
  int32_t ready = -1;   // span in which the last gradient of one of the layers is added to
  int32_t wanted = -1;  // … of the first iteration in which the last of them is first read
  std::array<double, 4> pinned{};  // layers, by UpdatePosition
  int32_t layers = 0;
  double gathers = 0;                        // seconds of the exchanges that follow
  std::array<double, kTraffics> gathered{};  // their bytes
};

struct StepWork {
  std::vector<SharedResource> resources;  // of one device
  int32_t buckets = 0;
  std::vector<Span> spans;
  std::array<int32_t, 3> begins = {-1, -1, -1};  // of each iteration
  std::vector<std::array<int32_t, 3>> backward;  // by bucket
  int32_t updates = 0;                           // first span of the updates
  std::vector<Choice> choices;
  std::vector<Repeat> repeats;
  std::vector<Update> update;                                   // by bucket
  std::vector<double> gathers, sums;                            // seconds of communication by span
  std::array<std::vector<double>, kTraffics> gathered, summed;  // its bytes of each kind
  std::vector<std::pair<std::string, StreamPool>> rings;
  bool updates_on_host = false;             // of layers that are not pinned, too
  double least_device = 0, least_host = 0;  // bytes beside everything that is chosen
};

// Throws bad_input where `blocks` is no number of buckets.
StepWork step_work(const CertificateInput& input, int32_t group, int32_t blocks);

// Whose copies count with their start-up time, by choice, and how much a byte of each ring has room
// for: itself and the start-up of copies that a slot can hold parts of at once, none over another.
struct Starts {
  std::vector<bool> count;
  std::vector<double> room;
};
Starts starts_of(const StepWork& work, StreamPool pool, double copy_seconds);

// Bytes that the tiers hold at any placement for the order `group`, beside what is placed.
std::pair<double, double> least_bytes(const CertificateInput& input, int32_t group);

}  // namespace spillway::verify_detail
