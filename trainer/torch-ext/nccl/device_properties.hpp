// Of ATen/cuda/CUDAContextLight.h, which needs the headers of more CUDA libraries than the plugin does.
#pragma once

#include <c10/cuda/CUDAFunctions.h>

namespace at::cuda {
cudaDeviceProp* getDeviceProperties(c10::DeviceIndex device);
}
