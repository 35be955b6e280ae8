#pragma once
// Memory of the simulated devices, and pinned memory of the host. New and freed memory is poisoned, and a block that is freed
// is the next that is given out, on the stream that it was allocated for, as by libtorch's caching allocators.
#include <string>

#include <c10/core/CachingDeviceAllocator.h>

#include "streams.hpp"

namespace sim {

// What poisoned memory holds in each byte: NaN as a float, -1 as an integer.
constexpr int kPoison = 0xFF;

c10::DeviceAllocator& device_allocator();
c10::Allocator& pinned_allocator();
bool is_pinned(const void* memory);
// Until `task` has ended, a pinned block is not given out again.
void keep_pinned(const void* memory, const std::shared_ptr<Task>& task);

// While it lives, what this thread allocates on the CPU is memory of a device: what an operator makes.
class OnDeviceMemory {
 public:
  explicit OnDeviceMemory(c10::DeviceIndex device);
  ~OnDeviceMemory();
};

// Takes over the CPU's allocator, which serves `OnDeviceMemory`.
void install_allocators();

// Notes that a piece of a stream's work reads or writes memory of a device. An error where that is not ordered with what other
// streams do with it: a missing wait, or memory that is used again too early.
void access(StreamName stream, const Moment& moment, const void* memory, size_t bytes, bool writes, const std::string& who);

// The host knows that this piece of work has ended, and now drops its reference to the tensor whose memory this is: whoever gets
// the memory next comes after it.
void release_after(const Moment& moment, const void* memory);

// Memory that no tensor has, as a communicator's.
void take(c10::DeviceIndex device, int64_t bytes, const char* what);

// Devices that this process has memory on, with the most that tensors had at once, and the most pinned memory.
struct Usage {
  std::vector<std::pair<c10::DeviceIndex, int64_t>> peaks;
  int64_t pinned_peak;
};
Usage usage();

}  // namespace sim
