#pragma once
// Settings from the environment; src/lib.rs documents the variables.
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include <c10/core/Device.h>

namespace sim {

enum class Failure { kLost, kHangs };

// A failure of one rank's device at this operator.
struct Fault {
  Failure failure;
  uint64_t operation;
};

struct Settings {
  c10::DeviceIndex devices = 0;
  // Rank of this process; 0 outside a job.
  int rank = 0;
  std::chrono::microseconds most_delay{0};
  uint64_t seed = 0;
  // Memory of each device; 0 for as much as the host has.
  int64_t device_bytes = 0;
  int64_t communicator_bytes = 0;
  // Extra time of each operator of this rank.
  std::chrono::microseconds slowness{0};
  std::optional<Fault> fault;
  // Compile error of this project's kernels; empty if they compile.
  std::string kernel_failure;
  // Folder for reports of resource use at exit; empty for none.
  std::string report_folder;
  // The address at which other ranks reach this one.
  std::string address = "127.0.0.1";
};

const Settings& settings();

// The name of a device in CUDA_VISIBLE_DEVICES.
std::string visible_name(c10::DeviceIndex device);

// Delay of the next copy or collective.
std::chrono::microseconds next_delay();

}  // namespace sim
