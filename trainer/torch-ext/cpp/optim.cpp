// Multi-tensor operations on all parameters at once, which tch's generator leaves out.
#include <ATen/ATen.h>

#include "error.hpp"
#include "tensors.hpp"

using vit::guarded;
using vit::tensor_list;

extern "C" {

// One AdamW step of all parameters in one call. `step` is a float scalar on the parameters' device, 1 for the first
// step. Contract of at::_fused_adamw_: the caller has counted the step already.
vit::Status vit_fused_adamw(at::Tensor* const* parameters, at::Tensor* const* gradients, at::Tensor* const* first_moments,
                            at::Tensor* const* second_moments, size_t count, at::Tensor* step, double learning_rate,
                            double beta1, double beta2, double weight_decay, double epsilon) {
  return guarded([&] {
    c10::NoGradGuard no_grad;
    const auto list = tensor_list(parameters, count);
    const std::vector<at::Tensor> steps(count, *step);
    at::_fused_adamw_(list, tensor_list(gradients, count), tensor_list(first_moments, count),
                      tensor_list(second_moments, count), /*max_exp_avg_sqs=*/{}, steps, learning_rate, beta1, beta2,
                      weight_decay, epsilon, /*amsgrad=*/false, /*maximize=*/false);
  });
}

// Euclidean norm over the elements of all tensors together.
vit::Status vit_global_norm(at::Tensor* const* tensors, size_t count, double* norm) {
  return guarded([&] {
    c10::NoGradGuard no_grad;
    const auto norms = at::_foreach_norm(tensor_list(tensors, count), 2);
    *norm = at::linalg_vector_norm(at::stack(norms), 2).item<double>();
  });
}

// Multiplies every tensor by `factor` in place.
vit::Status vit_scale(at::Tensor* const* tensors, size_t count, double factor) {
  return guarded([&] {
    c10::NoGradGuard no_grad;
    at::_foreach_mul_(tensor_list(tensors, count), factor);
  });
}

// Sets every tensor to zero in place.
vit::Status vit_zero(at::Tensor* const* tensors, size_t count) {
  return guarded([&] {
    c10::NoGradGuard no_grad;
    at::_foreach_zero_(tensor_list(tensors, count));
  });
}
}
