#pragma once
// Connections between the ranks of a group.
#include <chrono>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Store.hpp>

namespace sim {

class Links {
 public:
  // Connects to the other ranks through the store. A peer silent for `timeout` is an error.
  Links(c10d::Store& store, int rank, int size, const std::string& address, std::chrono::milliseconds timeout);
  ~Links();
  Links(const Links&) = delete;
  Links& operator=(const Links&) = delete;

  // Gathers `bytes` bytes of each rank, by rank.
  void gather(const void* own, void* all, size_t bytes);
  void send(int rank, const void* data, size_t bytes);
  void receive(int rank, void* data, size_t bytes);

 private:
  // Sends to one peer while receiving from another, so neither waits for the other's buffers. A
  // lost peer is an error.
  void transfer(int to, const char* sent, size_t sent_bytes, int from, char* received, size_t received_bytes);

  int rank_;
  std::chrono::milliseconds timeout_;
  // By rank; -1 for this rank.
  std::vector<int> sockets_;
};

}  // namespace sim
