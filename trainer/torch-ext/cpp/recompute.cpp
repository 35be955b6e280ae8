// Activation checkpointing: forward passes that keep less and are recomputed in the backward pass.
#include <memory>

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include "error.hpp"
#include "tensors.hpp"

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using vit::guarded;

namespace vit {
// The error message of a Rust closure on this thread.
thread_local std::string closure_error;
}  // namespace vit

namespace {

// A Rust closure. `run` returns 0 and a new tensor in `output`, or 1 and vit::closure_error.
struct Closure : torch::CustomClassHolder {
  using Run = int (*)(void* data, at::Tensor* input, at::Tensor** output);
  using Free = void (*)(void* data);

  Closure(void* data, Run run, Free free) : data(data), run(run), free(free) {}
  ~Closure() override { free(data); }

  at::Tensor operator()(at::Tensor input) const {
    at::Tensor* output = nullptr;
    TORCH_CHECK(run(data, &input, &output) == 0, vit::closure_error);
    return *std::unique_ptr<at::Tensor>(output);
  }

  void* data;
  Run run;
  Free free;
};

// Autocast state of this thread for one device type.
struct Autocast {
  at::DeviceType device;
  bool enabled;
  at::ScalarType kind;

  static Autocast current(at::DeviceType device) {
    return {device, at::autocast::is_autocast_enabled(device), at::autocast::get_autocast_dtype(device)};
  }

  void set() const {
    at::autocast::set_autocast_enabled(device, enabled);
    at::autocast::set_autocast_dtype(device, kind);
  }
};

// Sets autocast for a scope, without its cache: casts made without gradients would be reused.
class AutocastGuard {
 public:
  explicit AutocastGuard(const Autocast& wanted)
      : before_(Autocast::current(wanted.device)), cache_(at::autocast::is_autocast_cache_enabled()) {
    wanted.set();
    at::autocast::set_autocast_cache_enabled(false);
  }
  ~AutocastGuard() {
    before_.set();
    at::autocast::set_autocast_cache_enabled(cache_);
  }
  AutocastGuard(const AutocastGuard&) = delete;
  AutocastGuard& operator=(const AutocastGuard&) = delete;

 private:
  Autocast before_;
  bool cache_;
};

// Keeps only the input and runs the closure again in the backward pass. The closure's parameters
// are inputs too, so that their gradients leave through this node: whatever waits for a gradient
// (the reducer) gets one, at the usual place.
struct Recompute : torch::autograd::Function<Recompute> {
  static at::Tensor forward(AutogradContext* context, const c10::intrusive_ptr<Closure>& closure,
                            at::TensorList inputs) {
    const auto autocast = Autocast::current(inputs.at(0).device().type());
    context->save_for_backward(inputs.vec());
    context->saved_data["closure"] = at::IValue::make_capsule(closure);
    context->saved_data["autocast"] = autocast.enabled;
    context->saved_data["kind"] = static_cast<int64_t>(autocast.kind);
    AutocastGuard guard(autocast);
    return (*closure)(inputs.at(0));
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    auto inputs = context->get_saved_variables();
    const auto closure = c10::static_intrusive_pointer_cast<Closure>(context->saved_data["closure"].toCapsule());
    const bool input_needed = inputs.at(0).requires_grad();
    inputs[0] = inputs[0].detach().requires_grad_(input_needed);
    variable_list wanted;
    for (const auto& input : inputs) {
      if (input.requires_grad()) {
        wanted.push_back(input);
      }
    }
    at::AutoGradMode with_gradients(true);
    at::Tensor output;
    {
      AutocastGuard guard({inputs[0].device().type(), context->saved_data["autocast"].toBool(),
                           static_cast<at::ScalarType>(context->saved_data["kind"].toInt())});
      output = (*closure)(inputs[0]);
    }
    auto found = torch::autograd::grad({output}, wanted, {gradients.at(0)}, /*retain_graph=*/false,
                                       /*create_graph=*/false, /*allow_unused=*/true);
    // The closure itself has no gradient.
    variable_list results(1);
    auto next = found.begin();
    for (const auto& input : inputs) {
      results.push_back(input.requires_grad() ? *next++ : at::Tensor());
    }
    return results;
  }
};

// Gradients of y = x W^T + b for x of any number of dimensions, in the kind of `gradient`.
struct LinearGradients {
  at::Tensor input, weight, bias;

  LinearGradients(const at::Tensor& gradient, const at::Tensor& x, const at::Tensor& w) {
    const auto kind = gradient.scalar_type();
    const auto rows = gradient.reshape({-1, gradient.size(-1)});
    weight = rows.t().mm(x.reshape({-1, x.size(-1)}).to(kind)).to(w.scalar_type());
    bias = rows.sum(0).to(w.scalar_type());
    input = gradient.matmul(w.to(kind)).to(x.scalar_type());
  }
};

// linear(gelu(x)), keeping x and not gelu(x).
struct GeluLinear : torch::autograd::Function<GeluLinear> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight,
                            const at::Tensor& bias) {
    context->save_for_backward({x, weight});
    return at::linear(at::gelu(x), weight, bias);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    c10::NoGradGuard no_grad;
    const auto saved = context->get_saved_variables();
    const LinearGradients linear(gradients.at(0), at::gelu(saved.at(0)), saved.at(1));
    return {at::gelu_backward(linear.input, saved.at(0)), linear.weight, linear.bias};
  }
};

// linear(layer_norm(x)), keeping x and its statistics and not layer_norm(x).
struct NormLinear : torch::autograd::Function<NormLinear> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& norm_weight,
                            const at::Tensor& norm_bias, const at::Tensor& weight, const at::Tensor& bias,
                            double epsilon) {
    const auto [normed, mean, deviation] =
        at::native_layer_norm(x, {x.size(-1)}, norm_weight, norm_bias, epsilon);
    context->save_for_backward({x, mean, deviation, norm_weight, norm_bias, weight});
    context->saved_data["epsilon"] = epsilon;
    return at::linear(normed, weight, bias);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    c10::NoGradGuard no_grad;
    const auto saved = context->get_saved_variables();
    const auto& x = saved.at(0);
    const auto normed = std::get<0>(at::native_layer_norm(x, {x.size(-1)}, saved.at(3), saved.at(4),
                                                          context->saved_data["epsilon"].toDouble()));
    const LinearGradients linear(gradients.at(0), normed, saved.at(5));
    const auto [input, norm_weight, norm_bias] = at::native_layer_norm_backward(
        linear.input, x, {x.size(-1)}, saved.at(1), saved.at(2), saved.at(3), saved.at(4), {true, true, true});
    return {input, norm_weight, norm_bias, linear.weight, linear.bias, at::Tensor()};
  }
};

}  // namespace

extern "C" {

// Sets the error message of the closure running on this thread.
void vit_closure_error(const char* message, size_t length) {
  guarded([&] { vit::closure_error.assign(message, length); });
}

// closure(inputs[0]). Always takes `data`, and calls `free` when no backward pass can follow.
vit::Status vit_recompute(void* data, Closure::Run run, Closure::Free free, at::Tensor* const* inputs, size_t count,
                          at::Tensor** output) {
  return guarded([&] {
    auto closure = c10::make_intrusive<Closure>(data, run, free);
    const auto list = vit::tensor_list(inputs, count);
    *output = new at::Tensor(Recompute::apply(closure, at::TensorList(list)));
  });
}

vit::Status vit_gelu_linear(at::Tensor* x, at::Tensor* weight, at::Tensor* bias, at::Tensor** output) {
  return guarded([&] { *output = new at::Tensor(GeluLinear::apply(*x, *weight, *bias)); });
}

vit::Status vit_norm_linear(at::Tensor* x, at::Tensor* norm_weight, at::Tensor* norm_bias, at::Tensor* weight,
                            at::Tensor* bias, double epsilon, at::Tensor** output) {
  return guarded([&] {
    *output = new at::Tensor(NormLinear::apply(*x, *norm_weight, *norm_bias, *weight, *bias, epsilon));
  });
}
}
