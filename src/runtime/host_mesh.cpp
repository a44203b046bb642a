#include "runtime/host_mesh.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace spillway {
namespace {

in6_addr mapped(in_addr v4) {
  in6_addr address{};
  address.s6_addr[10] = address.s6_addr[11] = 0xFF;
  std::memcpy(&address.s6_addr[12], &v4, 4);
  return address;
}

}  // namespace

HostMesh::HostMesh() {
  constexpr int kFlags = SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC;
  fd_ = socket(AF_INET6, kFlags, 0);
  int both = 0;
  sockaddr_in6 any6{};
  any6.sin6_family = AF_INET6;
  if (fd_ >= 0 && setsockopt(fd_, IPPROTO_IPV6, IPV6_V6ONLY, &both, sizeof both) == 0 &&
      bind(fd_, reinterpret_cast<sockaddr*>(&any6), sizeof any6) == 0)
    return;
  if (fd_ >= 0) close(fd_);
  v6_ = false;
  fd_ = socket(AF_INET, kFlags, 0);
  sockaddr_in any4{};
  any4.sin_family = AF_INET;
  if (fd_ >= 0 && bind(fd_, reinterpret_cast<sockaddr*>(&any4), sizeof any4) == 0) return;
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
}

HostMesh::~HostMesh() {
  if (fd_ >= 0) close(fd_);
}

HostContact HostMesh::contact() const {
  HostContact contact;
  sockaddr_storage name{};
  socklen_t length = sizeof name;
  if (fd_ < 0 || getsockname(fd_, reinterpret_cast<sockaddr*>(&name), &length) != 0) return contact;
  contact.port = ntohs(v6_ ? reinterpret_cast<sockaddr_in6*>(&name)->sin6_port
                           : reinterpret_cast<sockaddr_in*>(&name)->sin_port);
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return contact;
  // Loopback last: only hosts that are no machines of their own reach each other by it.
  for (const bool loopback : {false, true}) {
    for (const ifaddrs* i = all; i != nullptr; i = i->ifa_next) {
      if (i->ifa_addr == nullptr || (i->ifa_flags & IFF_UP) == 0) continue;
      if (((i->ifa_flags & IFF_LOOPBACK) != 0) != loopback) continue;
      in6_addr address;
      if (i->ifa_addr->sa_family == AF_INET) {
        address = mapped(reinterpret_cast<const sockaddr_in*>(i->ifa_addr)->sin_addr);
      } else if (i->ifa_addr->sa_family == AF_INET6 && v6_) {
        address = reinterpret_cast<const sockaddr_in6*>(i->ifa_addr)->sin6_addr;
        if (IN6_IS_ADDR_LINKLOCAL(&address)) continue;  // means nothing without an interface
      } else {
        continue;
      }
      if (contact.count < HostContact::kMaxAddresses) contact.address[contact.count++] = address;
    }
  }
  freeifaddrs(all);
  return contact;
}

void HostMesh::meet(uint64_t key, int own, std::vector<HostContact> hosts) {
  key_ = key;
  own_ = own;
  hosts_ = std::move(hosts);
  way_.assign(hosts_.size(), -1);
  heard_.assign(hosts_.size(), -1);
}

void HostMesh::send(int to, uint32_t kind, std::span<const std::byte> payload) {
  const std::lock_guard lock(mutex_);
  const HostContact& host = hosts_[to];
  if (fd_ < 0 || host.port == 0 || payload.size() > kMaxPayload) return;
  const int only = way_[to];
  for (int way = only < 0 ? 0 : only; way < (only < 0 ? host.count : only + 1); ++way) {
    Header header{key_, own_, to, way, heard_[to], kind, 0};
    iovec parts[2] = {{&header, sizeof header},
                      {const_cast<std::byte*>(payload.data()), payload.size()}};
    sockaddr_in6 to6{};
    sockaddr_in to4{};
    msghdr message{};
    message.msg_iov = parts;
    message.msg_iovlen = 2;
    if (v6_) {
      to6.sin6_family = AF_INET6;
      to6.sin6_port = htons(host.port);
      to6.sin6_addr = host.address[way];
      message.msg_name = &to6;
      message.msg_namelen = sizeof to6;
    } else {
      if (!IN6_IS_ADDR_V4MAPPED(&host.address[way])) continue;
      to4.sin_family = AF_INET;
      to4.sin_port = htons(host.port);
      std::memcpy(&to4.sin_addr, &host.address[way].s6_addr[12], 4);
      message.msg_name = &to4;
      message.msg_namelen = sizeof to4;
    }
    // A datagram that cannot leave now is a datagram lost: the next one says the same.
    if (sendmsg(fd_, &message, MSG_DONTWAIT | MSG_NOSIGNAL) < 0) continue;
  }
}

void HostMesh::forget_way(int host) {
  const std::lock_guard lock(mutex_);
  way_[host] = -1;
}

bool HostMesh::receive(Datagram& datagram) {
  if (fd_ < 0) return false;
  const std::lock_guard lock(mutex_);
  for (;;) {
    Header header;
    iovec parts[2] = {{&header, sizeof header}, {datagram.payload, kMaxPayload}};
    msghdr message{};
    message.msg_iov = parts;
    message.msg_iovlen = 2;
    const ssize_t bytes = recvmsg(fd_, &message, MSG_DONTWAIT);
    if (bytes < 0) {
      // An address of a peer that refuses says so here; the others may still be heard.
      if (errno == ECONNREFUSED || errno == EHOSTUNREACH || errno == ENETUNREACH || errno == EINTR)
        continue;
      return false;
    }
    if (static_cast<size_t>(bytes) < sizeof header || (message.msg_flags & MSG_TRUNC) != 0)
      continue;
    const auto hosts = static_cast<int32_t>(hosts_.size());
    if (header.key != key_ || header.to != own_ || header.from < 0 || header.from >= hosts ||
        header.from == own_)
      continue;
    heard_[header.from] = header.way;
    if (header.heard >= 0 && header.heard < hosts_[header.from].count)
      way_[header.from] = header.heard;
    datagram.from = header.from;
    datagram.kind = header.kind;
    datagram.bytes = static_cast<size_t>(bytes) - sizeof header;
    return true;
  }
}

}  // namespace spillway
