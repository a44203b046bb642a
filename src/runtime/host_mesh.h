// Datagrams between the hosts of a run, for the watchdog: small, unreliable, never blocking, and
// independent of MPI, whose connections are what may be broken. One socket a process; every host is
// reached at whichever of its addresses answers.
//
// A datagram is a Header, then the payload as the sender gave it. All hosts of a run have one byte
// order, as they run one binary.
#pragma once

#include <netinet/in.h>

#include <cstdint>
#include <mutex>
#include <span>
#include <vector>

namespace spillway {

// Where a process can be reached; exchanged between hosts over MPI at start.
struct HostContact {
  static constexpr int kMaxAddresses = 8;
  uint16_t port = 0;  // host order; 0: this process has no socket
  uint16_t count = 0;
  in6_addr address[kMaxAddresses] = {};  // IPv4 ones mapped
};

class HostMesh {
 public:
  static constexpr size_t kMaxPayload = 1200;  // fits one frame of any network

  // Opens the socket. Without any network it has no contact, sends nothing and hears nothing.
  HostMesh();
  ~HostMesh();
  HostMesh(const HostMesh&) = delete;
  HostMesh& operator=(const HostMesh&) = delete;

  HostContact contact() const;

  // Who is who: this process is, or speaks for, host `own` of `hosts`. What does not carry `key`
  // is not of this run and is dropped.
  void meet(uint64_t key, int own, std::vector<HostContact> hosts);

  // To host `to`: by the way that is known to work, or by all of its addresses.
  void send(int to, uint32_t kind, std::span<const std::byte> payload);

  struct Datagram {
    int from = -1;
    uint32_t kind = 0;
    size_t bytes = 0;
    std::byte payload[kMaxPayload];
  };
  // The next datagram that has come, if any.
  bool receive(Datagram& datagram);

  // This host has been silent: its way is looked for anew.
  void forget_way(int host);

 private:
  struct Header {
    uint64_t key;
    int32_t from, to;
    int32_t way;    // index of the receiver's address this was sent to
    int32_t heard;  // index of the sender's address at which the receiver was heard, or -1
    uint32_t kind;
    uint32_t reserved;
  };

  std::mutex mutex_;  // send and receive may be called from any thread
  int fd_ = -1;
  bool v6_ = true;  // the socket speaks both; else IPv4 alone
  uint64_t key_ = 0;
  int own_ = -1;
  std::vector<HostContact> hosts_;
  std::vector<int32_t> way_, heard_;  // by host; -1: not known yet
};

}  // namespace spillway
