#pragma once
// A group of ranks with NCCL's rules on simulated devices.
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

// Connects the ranks, like ProcessGroupNCCL with `eagerConnectSingleDevice`.
c10::intrusive_ptr<c10d::Backend> nccl_group(const c10::intrusive_ptr<c10d::Store>& store, const GroupOptions& options);

// The collectives of this process so far, in the format of NCCL's flight recorder.
std::string flight_record();

// Number of communicators that this process has created.
size_t communicators();

// Waits for collectives and returns a line for each that another rank has not joined.
std::string left_over();

}  // namespace sim
