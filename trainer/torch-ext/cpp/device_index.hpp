#pragma once
#include <c10/core/Device.h>

namespace vit {

// The device for an index from Rust: that of a CUDA device, or negative for the CPU.
inline c10::Device device_of(int index) {
  return index < 0 ? c10::Device(c10::kCPU) : c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(index));
}

}  // namespace vit
