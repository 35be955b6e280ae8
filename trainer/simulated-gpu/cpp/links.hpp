#pragma once
// Connections of the ranks of a group with one another.
#include <chrono>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Store.hpp>

namespace sim {

class Links {
 public:
  // Meets the other ranks by the store; this one is reached at `address`. Silence of a peer for `timeout` is an error.
  Links(c10d::Store& store, int rank, int size, const std::string& address, std::chrono::milliseconds timeout);
  ~Links();
  Links(const Links&) = delete;
  Links& operator=(const Links&) = delete;

  // What each rank has, `bytes` long, one after the other.
  void gather(const void* own, void* all, size_t bytes);
  void send(int rank, const void* data, size_t bytes);
  void receive(int rank, void* data, size_t bytes);

 private:
  // Sends to one peer what is received from another, at the same time: neither waits for room in the other's buffers. A peer
  // that is gone is an error.
  void transfer(int to, const char* sent, size_t sent_bytes, int from, char* received, size_t received_bytes);

  int rank_;
  std::chrono::milliseconds timeout_;
  // By rank; none to itself.
  std::vector<int> sockets_;
};

}  // namespace sim
