#include "links.hpp"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include <c10/util/Exception.h>

namespace sim {
namespace {

// NCCL's error for a peer that it can no longer reach.
[[noreturn]] void fail(const char* what) {
  TORCH_CHECK_WITH(DistBackendError, false, "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely (",
                   what, ": ", std::strerror(errno), ")");
}

// The address of an interface of this machine or of a peer.
struct Address {
  sockaddr_storage storage{};
  socklen_t size = 0;

  Address(const std::string& host, const std::string& port) {
    addrinfo hints{}, *found = nullptr;
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = AI_NUMERICHOST;
    TORCH_CHECK(getaddrinfo(host.c_str(), port.c_str(), &hints, &found) == 0, host, " is not an address");
    size = found->ai_addrlen;
    std::memcpy(&storage, found->ai_addr, size);
    freeaddrinfo(found);
  }

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
};

std::string key(int rank) { return "links-" + std::to_string(rank); }

void send_at_once(int socket) {
  const int yes = 1;
  setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
}

}  // namespace

Links::Links(c10d::Store& store, int rank, int size, const std::string& address, std::chrono::milliseconds timeout)
    : rank_(rank), timeout_(timeout), sockets_(size, -1) {
  Address own(address, "0");
  const int listener = socket(own.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (listener < 0 || bind(listener, own.get(), own.size) != 0 || listen(listener, size) != 0 ||
      getsockname(listener, reinterpret_cast<sockaddr*>(&own.storage), &own.size) != 0) {
    fail("listen");
  }
  char port[16];
  getnameinfo(own.get(), own.size, nullptr, 0, port, sizeof(port), NI_NUMERICSERV);
  store.set(key(rank), address + " " + port);
  // A rank connects to lower ranks and accepts higher ones.
  for (int peer = 0; peer < rank; ++peer) {
    const auto text = store.get_to_str(key(peer));
    const auto space = text.find(' ');
    const Address place(text.substr(0, space), text.substr(space + 1));
    sockets_[peer] = socket(place.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (sockets_[peer] < 0 || connect(sockets_[peer], place.get(), place.size) != 0) {
      fail("connect");
    }
    send_at_once(sockets_[peer]);
    send(peer, &rank, sizeof(rank));
  }
  for (int missing = size - 1 - rank; missing > 0; --missing) {
    const int socket = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    int peer = -1;
    if (socket < 0 || recv(socket, &peer, sizeof(peer), MSG_WAITALL) != sizeof(peer)) {
      fail("accept");
    }
    send_at_once(socket);
    sockets_.at(peer) = socket;
  }
  close(listener);
}

Links::~Links() {
  for (const int socket : sockets_) {
    if (socket >= 0) {
      close(socket);
    }
  }
}

void Links::transfer(int to, const char* sent, size_t sent_bytes, int from, char* received, size_t received_bytes) {
  while (sent_bytes > 0 || received_bytes > 0) {
    pollfd waits[2]{{sent_bytes > 0 ? sockets_[to] : -1, POLLOUT, 0}, {received_bytes > 0 ? sockets_[from] : -1, POLLIN, 0}};
    const int ready = poll(waits, 2, static_cast<int>(timeout_.count()));
    TORCH_CHECK_WITH(DistBackendError, ready != 0, "collective operation timeout: ran for more than ", timeout_.count(), " ms");
    if (ready < 0 && errno != EINTR) {
      fail("poll");
    }
    if (sent_bytes > 0 && waits[0].revents != 0) {
      const auto count = ::send(sockets_[to], sent, sent_bytes, MSG_DONTWAIT | MSG_NOSIGNAL);
      if (count < 0 && errno != EAGAIN) {
        fail("send");
      }
      sent += std::max<ssize_t>(count, 0);
      sent_bytes -= std::max<ssize_t>(count, 0);
    }
    if (received_bytes > 0 && waits[1].revents != 0) {
      const auto count = recv(sockets_[from], received, received_bytes, MSG_DONTWAIT);
      if (count == 0 || (count < 0 && errno != EAGAIN)) {
        fail("receive");
      }
      received += std::max<ssize_t>(count, 0);
      received_bytes -= std::max<ssize_t>(count, 0);
    }
  }
}

void Links::gather(const void* own, void* all, size_t bytes) {
  const int size = static_cast<int>(sockets_.size());
  auto* places = static_cast<char*>(all);
  std::memcpy(places + rank_ * bytes, own, bytes);
  for (int distance = 1; distance < size; ++distance) {
    const int to = (rank_ + distance) % size, from = (rank_ + size - distance) % size;
    transfer(to, static_cast<const char*>(own), bytes, from, places + from * bytes, bytes);
  }
}

void Links::send(int rank, const void* data, size_t bytes) { transfer(rank, static_cast<const char*>(data), bytes, rank, nullptr, 0); }
void Links::receive(int rank, void* data, size_t bytes) { transfer(rank, nullptr, 0, rank, static_cast<char*>(data), bytes); }

}  // namespace sim
