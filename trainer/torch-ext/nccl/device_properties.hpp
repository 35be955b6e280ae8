// From ATen/cuda/CUDAContextLight.h, which needs headers of more CUDA libraries.
#pragma once

#include <c10/cuda/CUDAFunctions.h>

namespace at::cuda {
cudaDeviceProp* getDeviceProperties(c10::DeviceIndex device);
}
