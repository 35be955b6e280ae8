// Arithmetic settings for GPUs (ATen/Context.h), global to the process.
#include <ATen/Context.h>

#include "error.hpp"

using at::SDPBackend;
using vit::guarded;

namespace {

bool is_enabled(const at::Context& context, SDPBackend backend) {
  switch (backend) {
    case SDPBackend::flash_attention:
      return context.userEnabledFlashSDP();
    case SDPBackend::efficient_attention:
      return context.userEnabledMemEfficientSDP();
    case SDPBackend::math:
      return context.userEnabledMathSDP();
    case SDPBackend::cudnn_attention:
      return context.userEnabledCuDNNSDP();
    default:
      // Kernels for devices of other vendors.
      return false;
  }
}

}  // namespace

extern "C" {

// Sets the arithmetic of fp32 matrix products and the attention kernels.
vit::Status vit_set_arithmetic(bool tf32, bool cudnn_attention) {
  return guarded([&] {
    auto& context = at::globalContext();
    // This setter updates both of libtorch's records of the switch, which must agree;
    // setFloat32Precision sets one. cuDNN's switch is for convolutions, which the model lacks.
    context.setAllowTF32CuBLAS(tf32);

    std::vector<SDPBackend> order{SDPBackend::flash_attention, SDPBackend::efficient_attention, SDPBackend::math};
    order.insert(cudnn_attention ? order.begin() : order.end(), SDPBackend::cudnn_attention);
    order.push_back(SDPBackend::overrideable);
    std::vector<int64_t> numbers;
    for (const auto backend : order) {
      numbers.push_back(static_cast<int64_t>(backend));
    }
    context.setSDPPriorityOrder(numbers);
    // The order alone does not exclude cuDNN: on Hopper and Blackwell, a process's first attention
    // replaces it by one with cuDNN first.
    context.setSDPUseCuDNN(cudnn_attention);
    context.setSDPUseFlash(true);
    context.setSDPUseMemEfficient(true);
    context.setSDPUseMath(true);
  });
}

// Allows or forbids cuDNN attention from now on, and returns whether it was allowed before.
vit::Status vit_exchange_cudnn_attention(bool allowed, bool* before) {
  return guarded([&] {
    auto& context = at::globalContext();
    *before = context.userEnabledCuDNNSDP();
    context.setSDPUseCuDNN(allowed);
  });
}

// The settings: whether fp32 products may use TF32, and the numbers of the `count` enabled backends
// (at most 5), in order.
vit::Status vit_arithmetic(bool* tf32, int64_t* backends, size_t* count) {
  return guarded([&] {
    auto& context = at::globalContext();
    *tf32 = context.allowTF32CuBLAS();
    *count = 0;
    for (const auto backend : context.sDPPriorityOrder()) {
      if (is_enabled(context, backend)) {
        backends[(*count)++] = static_cast<int64_t>(backend);
      }
    }
  });
}
}
