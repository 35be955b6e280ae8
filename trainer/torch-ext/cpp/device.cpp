// Counters of the caching allocators of devices.
#include <ATen/DeviceAccelerator.h>

#include "error.hpp"

using vit::guarded;

extern "C" {

// Peak bytes of tensors on a CUDA device.
vit::Status vit_peak_cuda_bytes(int index, uint64_t* bytes) {
  return guarded([&] {
    const auto stats = at::getDeviceAllocator(at::kCUDA)->getDeviceStats(static_cast<c10::DeviceIndex>(index));
    const auto all = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    *bytes = static_cast<uint64_t>(stats.allocated_bytes[all].peak);
  });
}
}
