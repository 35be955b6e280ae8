#pragma once
// What the environment says of the simulated GPUs; src/lib.rs documents the variables.
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include <c10/core/Device.h>

namespace sim {

enum class Failure { kLost, kHangs };

// A device of one rank that fails at its operator of this number.
struct Fault {
  Failure failure;
  uint64_t operation;
};

struct Settings {
  c10::DeviceIndex devices = 0;
  // Of this process among the ranks; 0 outside a job.
  int rank = 0;
  std::chrono::microseconds most_delay{0};
  uint64_t seed = 0;
  // Memory of each device; 0 is as much as the host has.
  int64_t device_bytes = 0;
  int64_t communicator_bytes = 0;
  // How much longer each operator of this rank takes.
  std::chrono::microseconds slowness{0};
  std::optional<Fault> fault;
  // Why kernels of this project's own cannot be compiled. Empty: they can.
  std::string kernel_failure;
  // Where a process writes what it used, as it exits. Empty: nowhere.
  std::string report_folder;
  // The address on which ranks reach this one.
  std::string address = "127.0.0.1";
};

const Settings& settings();

// How CUDA_VISIBLE_DEVICES names a device of this process.
std::string visible_name(c10::DeviceIndex device);

// How late the next copy or collective ends.
std::chrono::microseconds next_delay();

}  // namespace sim
