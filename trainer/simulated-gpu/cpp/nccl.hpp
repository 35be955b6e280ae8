#pragma once
// A group of ranks with NCCL's rules over simulated devices.
#include <string>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace sim {

struct GroupOptions {
  std::string name;
  c10::DeviceIndex device;
  int rank;
  int size;
  std::chrono::milliseconds timeout;
};

// Connects the ranks, as ProcessGroupNCCL does with `eagerConnectSingleDevice`.
c10::intrusive_ptr<c10d::Backend> nccl_group(const c10::intrusive_ptr<c10d::Store>& store, const GroupOptions& options);

// The collectives of this process so far, in the form of NCCL's flight recorder.
std::string flight_record();

// How many communicators this process has made.
size_t communicators();

// Returns a line for each collective that some rank of its group has not taken part in, once those that can end have.
std::string left_over();

}  // namespace sim
