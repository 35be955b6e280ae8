// What libtorch's context (ATen/Context.h) says about arithmetic on GPUs. It is the process's; only CUDA reads it.
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
      // A place for kernels of other vendors' devices.
      return false;
  }
}

}  // namespace

extern "C" {

// Sets how fp32 matrix products are computed, and what attention is computed with.
vit::Status vit_set_arithmetic(bool tf32, bool cudnn_attention) {
  return guarded([&] {
    auto& context = at::globalContext();
    // This setter keeps both of libtorch's records of the switch, which it wants to agree; setFloat32Precision sets one.
    // That of cuDNN is for convolutions, of which the model has none.
    context.setAllowTF32CuBLAS(tf32);

    std::vector<SDPBackend> order{SDPBackend::flash_attention, SDPBackend::efficient_attention, SDPBackend::math};
    order.insert(cudnn_attention ? order.begin() : order.end(), SDPBackend::cudnn_attention);
    order.push_back(SDPBackend::overrideable);
    std::vector<int64_t> numbers;
    for (const auto backend : order) {
      numbers.push_back(static_cast<int64_t>(backend));
    }
    context.setSDPPriorityOrder(numbers);
    // The order alone does not keep cuDNN out: on Hopper and Blackwell, the first attention of a process replaces it by
    // one in which cuDNN is first.
    context.setSDPUseCuDNN(cudnn_attention);
    context.setSDPUseFlash(true);
    context.setSDPUseMemEfficient(true);
    context.setSDPUseMath(true);
  });
}

// Whether cuDNN may compute attention from now on, and whether it could before.
vit::Status vit_exchange_cudnn_attention(bool allowed, bool* before) {
  return guarded([&] {
    auto& context = at::globalContext();
    *before = context.userEnabledCuDNNSDP();
    context.setSDPUseCuDNN(allowed);
  });
}

// What is set: whether fp32 products may be in TF32, and the numbers of the `count` backends (at most 5) that are
// enabled, in their order.
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
