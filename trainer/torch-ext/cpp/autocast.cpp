// Autocast of this thread. tch's version never sets a number format.
#include <ATen/autocast_mode.h>

#include "error.hpp"

extern "C" {

// From here on casts inputs of matrix products to bfloat16, or float16, on the device type of
// `tensor`; each weight is cast once and cached.
vit::Status vit_autocast_enter(at::Tensor* tensor, bool is_bfloat16) {
  return vit::guarded([&] {
    const auto device = tensor->device().type();
    TORCH_CHECK(!at::autocast::is_autocast_enabled(device), "autocast is enabled already");
    at::autocast::set_autocast_dtype(device, is_bfloat16 ? at::kBFloat16 : at::kHalf);
    at::autocast::set_autocast_enabled(device, true);
    at::autocast::set_autocast_cache_enabled(true);
    at::autocast::increment_nesting();
  });
}

// Ends autocast and clears the cached weights: the optimizer is about to change them.
void vit_autocast_leave(at::Tensor* tensor) {
  vit::guarded([&] {
    if (at::autocast::decrement_nesting() == 0) {
      at::autocast::clear_cache();
    }
    at::autocast::set_autocast_enabled(tensor->device().type(), false);
  });
}
}
