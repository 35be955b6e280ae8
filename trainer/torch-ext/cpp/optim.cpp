// Multi-tensor operations on all parameters, which tch's generator omits.
#include <optional>

#include <ATen/ATen.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "error.hpp"
#include "process_group.hpp"
#include "tensors.hpp"

using vit::guarded;
using vit::tensor_list;

namespace vit {

// Parameters of a step of AdamW or LAMB.
struct AdamNumbers {
  double learning_rate;
  double beta1;
  double beta2;
  double weight_decay;
  double epsilon;
};

// The device's decision on a step: float scalars there, even if the parameters are elsewhere.
// Gradients are divided by `grad_scale`, if any; if `found_inf` is 1 nothing changes.
struct Gate {
  const at::Tensor* grad_scale;
  const at::Tensor* found_inf;
};

// Parameters of a step of SGD.
struct SgdNumbers {
  double learning_rate;
  double momentum;
  double weight_decay;
  bool nesterov;
};

}  // namespace vit

namespace {

// Uninitialized tensors shaped like those of `list`, in one flat block of memory, so that one
// kernel can process them together.
std::pair<at::Tensor, std::vector<at::Tensor>> flat_like(const std::vector<at::Tensor>& list) {
  int64_t total = 0;
  for (const auto& tensor : list) {
    total += tensor.numel();
  }
  auto flat = at::empty({total}, list.at(0).options());
  std::vector<at::Tensor> views;
  views.reserve(list.size());
  int64_t start = 0;
  for (const auto& tensor : list) {
    views.push_back(flat.narrow(0, start, tensor.numel()).view(tensor.sizes()));
    start += tensor.numel();
  }
  return {flat, views};
}

// Elements per LAMB update; bounds its intermediate values to three times this many floats.
constexpr int64_t kLambElements = 1 << 24;

// 1 - beta^step for a scalar `step`, 1 for the first: a skipped step may leave it at 0.
at::Tensor bias_correction(double beta, const at::Tensor& step) {
  return 1.0 - at::pow(beta, step.to(at::kDouble).clamp_min(1.0));
}

// A step's scalars on the device of the parameters. The host knows their values only on the CPU.
struct Scalars {
  at::Tensor found_inf;
  std::optional<at::Tensor> grad_scale;

  Scalars(const vit::Gate& gate, at::Device device) : found_inf(gate.found_inf->to(device)) {
    if (gate.grad_scale != nullptr) {
      grad_scale = gate.grad_scale->to(device);
    }
  }
};

// Ranks that have pieces of the same tensors, if any, and the device on which they communicate.
struct Ranks {
  const vit::Group* group;
  at::Device device;
};

// The Euclidean norms of the tensors, or of those whose pieces they are on one of `ranks`.
at::Tensor norms_of(const std::vector<at::Tensor>& tensors, const Ranks& ranks) {
  auto norms = at::stack(at::_foreach_norm(tensors, 2));
  if (ranks.group == nullptr) {
    return norms;
  }
  std::vector<at::Tensor> squares{norms.to(ranks.device, at::kDouble).square()};
  ranks.group->group->allreduce(squares)->wait();
  return squares[0].sqrt().to(norms.device(), norms.scalar_type());
}

void lamb(const std::vector<at::Tensor>& weights, const std::vector<at::Tensor>& gradients,
          const std::vector<at::Tensor>& first, const std::vector<at::Tensor>& second, const at::Tensor& sizes,
          const Ranks& ranks, const at::Tensor& step, const Scalars& scalars, const vit::AdamNumbers& numbers) {
  auto [flat, updates] = flat_like(weights);
  const auto type = flat.scalar_type();
  const auto is_skipped = scalars.found_inf.to(at::kBool);
  const auto taken = 1.0 - scalars.found_inf;

  at::_foreach_copy_(updates, gradients);
  if (scalars.grad_scale) {
    flat.div_(*scalars.grad_scale);
  }
  // Gradients of a skipped step may not be finite, and no factor makes those zero.
  flat.masked_fill_(is_skipped, 0.0);
  at::_foreach_mul_(first, at::where(is_skipped, 1.0, numbers.beta1).to(type));
  at::_foreach_add_(first, updates, 1.0 - numbers.beta1);
  at::_foreach_mul_(second, at::where(is_skipped, 1.0, numbers.beta2).to(type));
  at::_foreach_addcmul_(second, updates, updates, 1.0 - numbers.beta2);

  auto denominators = at::_foreach_sqrt(second);
  at::_foreach_div_(denominators, bias_correction(numbers.beta2, step).sqrt().to(type));
  at::_foreach_add_(denominators, numbers.epsilon);
  at::_foreach_copy_(updates, first);
  at::_foreach_div_(updates, bias_correction(numbers.beta1, step).to(type));
  at::_foreach_div_(updates, denominators);
  if (numbers.weight_decay != 0.0) {
    at::_foreach_add_(updates, weights, numbers.weight_decay);
    // Copies on several ranks increase both norms equally, and the ratio stays.
    const auto weight_norms = norms_of(weights, ranks);
    const auto update_norms = norms_of(updates, ranks);
    const auto is_usable = (weight_norms > 0).logical_and_(update_norms > 0);
    const auto ratios = at::where(is_usable, weight_norms / update_norms, 1.0).to(type) * taken;
    // One multiplication over the flat memory; a factor per tensor would need a launch per tensor.
    flat.mul_(at::repeat_interleave(ratios, sizes, 0, flat.numel()));
  } else {
    flat.mul_(taken);
  }
  at::_foreach_add_(weights, updates, -numbers.learning_rate);
}

}  // namespace

extern "C" {

// One AdamW step of all parameters in one call. `step` is a float scalar on the gate's device, 1
// for the first step: at::_fused_adamw_ requires that the caller has counted it already.
vit::Status vit_fused_adamw(at::Tensor* const* parameters, at::Tensor* const* gradients, at::Tensor* const* first_moments,
                            at::Tensor* const* second_moments, size_t count, at::Tensor* step, const vit::Gate* gate,
                            const vit::AdamNumbers* numbers) {
  return guarded([&] {
    c10::NoGradGuard no_grad;
    const auto list = tensor_list(parameters, count);
    const auto device = list.at(0).device();
    const Scalars scalars(*gate, device);
    const std::vector<at::Tensor> steps(count, step->to(device));
    at::_fused_adamw_(list, tensor_list(gradients, count), tensor_list(first_moments, count),
                      tensor_list(second_moments, count), /*max_exp_avg_sqs=*/{}, steps, numbers->learning_rate,
                      numbers->beta1, numbers->beta2, numbers->weight_decay, numbers->epsilon, /*amsgrad=*/false,
                      /*maximize=*/false, scalars.grad_scale, scalars.found_inf);
  });
}

// One SGD step of all parameters in one call; without momentum there are no buffers. Starting from
// zero buffers equals torch.optim.SGD, which starts from the first gradient, as dampening is 0.
vit::Status vit_fused_sgd(at::Tensor* const* parameters, at::Tensor* const* gradients, at::Tensor* const* momentum_buffers,
                          size_t count, const vit::Gate* gate, const vit::SgdNumbers* numbers) {
  return guarded([&] {
    c10::NoGradGuard no_grad;
    const auto buffers = numbers->momentum == 0.0 ? std::vector<at::Tensor>{} : tensor_list(momentum_buffers, count);
    const auto list = tensor_list(parameters, count);
    const Scalars scalars(*gate, list.at(0).device());
    at::_fused_sgd_(list, tensor_list(gradients, count), buffers, numbers->weight_decay,
                    numbers->momentum, numbers->learning_rate, /*dampening=*/0.0, numbers->nesterov,
                    /*maximize=*/false, /*is_first_step=*/false, scalars.grad_scale, scalars.found_inf);
  });
}

// One LAMB step of all parameters; as in timm's Lamb, the trust ratio applies only with weight
// decay. `step` is a scalar on the gate's device, 1 for the first. `sizes` holds the element counts
// of the parameters, int32 on their device. With `ranks`, each of which calls this, the parameters
// are this rank's pieces, maybe empty, of parameters with `whole_sizes` elements.
vit::Status vit_lamb(at::Tensor* const* parameters, at::Tensor* const* gradients, at::Tensor* const* first_moments,
                     at::Tensor* const* second_moments, size_t count, at::Tensor* sizes, const int64_t* whole_sizes,
                     const vit::Group* ranks, at::Tensor* step, const vit::Gate* gate, const vit::AdamNumbers* numbers) {
  return guarded([&] {
    c10::NoGradGuard no_grad;
    const auto device = tensor_list(parameters, count).at(0).device();
    const Scalars scalars(*gate, device);
    const Ranks meeting{ranks, gate->found_inf->device()};
    const auto here = step->to(device);
    for (size_t start = 0; start < count;) {
      size_t end = start;
      // By whole sizes, so that all ranks process the same parameters at a time.
      for (int64_t elements = 0; end < count && (end == start || elements + whole_sizes[end] <= kLambElements); ++end) {
        elements += whole_sizes[end];
      }
      const auto part = [&](at::Tensor* const* list) { return tensor_list(list + start, end - start); };
      lamb(part(parameters), part(gradients), part(first_moments), part(second_moments),
           sizes->narrow(0, static_cast<int64_t>(start), static_cast<int64_t>(end - start)), meeting, here, scalars, *numbers);
      start = end;
    }
  });
}

// Writes the Euclidean norm over all elements of all tensors to the float scalar `norm` on their
// device.
vit::Status vit_global_norm(at::Tensor* const* tensors, size_t count, at::Tensor* norm) {
  return guarded([&] {
    c10::NoGradGuard no_grad;
    const auto norms = at::_foreach_norm(tensor_list(tensors, count), 2, at::kFloat);
    norm->copy_(at::linalg_vector_norm(at::stack(norms), 2));
  });
}

// Sets every tensor to zero in place.
vit::Status vit_zero(at::Tensor* const* tensors, size_t count) {
  return guarded([&] {
    c10::NoGradGuard no_grad;
    at::_foreach_zero_(tensor_list(tensors, count));
  });
}

// Copies `values` into `targets`, which may have another number format. Copies between host and
// device are queued together and converted on the device; the call waits for all.
vit::Status vit_copy(at::Tensor* const* targets, at::Tensor* const* values, size_t count) {
  return guarded([&] {
    c10::NoGradGuard no_grad;
    const auto to = tensor_list(targets, count), from = tensor_list(values, count);
    at::_foreach_copy_(to, from, /*non_blocking=*/true);
    const auto source = from.at(0).device(), target = to.at(0).device();
    if (source != target) {
      const auto device = source.is_cpu() ? target : source;
      c10::impl::VirtualGuardImpl(device.type()).getStream(device).synchronize();
    }
  });
}

// Moves `averages` toward `values` by the fraction `weight`.
vit::Status vit_lerp(at::Tensor* const* averages, at::Tensor* const* values, size_t count, double weight) {
  return guarded([&] {
    c10::NoGradGuard no_grad;
    at::_foreach_lerp_(tensor_list(averages, count), tensor_list(values, count), weight);
  });
}
}
