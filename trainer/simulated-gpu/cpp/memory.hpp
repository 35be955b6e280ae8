#pragma once
// Memory of the simulated devices, and pinned host memory. New and freed memory is poisoned. A
// freed block is the next allocated on its stream, as in libtorch's caching allocators.
#include <string>

#include <c10/core/CachingDeviceAllocator.h>

#include "streams.hpp"

namespace sim {

// Each byte of poisoned memory: NaN as a float, -1 as an integer.
constexpr int kPoison = 0xFF;

c10::DeviceAllocator& device_allocator();
c10::Allocator& pinned_allocator();
bool is_pinned(const void* memory);
// Keeps a pinned block from reuse until `task` has ended.
void keep_pinned(const void* memory, const std::shared_ptr<Task>& task);

// While it lives, this thread's CPU allocations, an operator's results, are device memory.
class OnDeviceMemory {
 public:
  explicit OnDeviceMemory(c10::DeviceIndex device);
  ~OnDeviceMemory();
};

// Replaces the CPU's allocator, which serves `OnDeviceMemory`.
void install_allocators();

// Records that a work item reads or writes device memory. An error if it is not ordered with
// accesses of other streams: a missing wait, or memory reused too early.
void access(StreamName stream, const WorkItem& item, const void* memory, size_t bytes, bool writes, const std::string& who);

// The host knows that this item has ended and drops its reference to the memory's tensor: the next
// owner comes after it.
void release_after(const WorkItem& item, const void* memory);

// Takes memory outside tensors, such as a communicator's.
void take(c10::DeviceIndex device, int64_t bytes, const char* what);

// Devices used by this process with their peak bytes of tensors, and peak pinned memory.
struct Usage {
  std::vector<std::pair<c10::DeviceIndex, int64_t>> peaks;
  int64_t pinned_peak;
};
Usage usage();

}  // namespace sim
