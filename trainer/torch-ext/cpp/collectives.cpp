// Collectives inside forward and backward passes, among ranks that compute one model together.
//
// Each of those ranks has the same loss. Ranks that divide tokens average gradients as if they had
// different images: values used in all losses have the gradient of their sum (SumForAll). Ranks
// that divide heads have gradients of their own weights, and the same gradient of common values
// (UsedInParts, SumOfParts: the functions f and g of Megatron-LM, arXiv 1909.08053).
#include <memory>

#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include "error.hpp"
#include "sync_step.hpp"

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using vit::guarded;
using vit::Interval;
using vit::Operation;

namespace {

// Ranks that compute one model together.
struct Collectives : torch::CustomClassHolder {
  Collectives(vit::Group group, std::shared_ptr<vit::TreeReduce> control, std::shared_ptr<vit::SyncRecorder> recorder)
      : group(std::move(group)), control(std::move(control)), recorder(std::move(recorder)) {}

  // Sends the i-th part along the first dimension to the i-th rank, and receives one from each.
  at::Tensor all_to_all(const at::Tensor& parts, bool in_forward) const {
    auto sent = parts.contiguous();
    auto received = at::empty_like(sent);
    std::vector<int64_t> even;
    run(Operation::kAllToAll, sent, in_forward,
        [&] { return group.group->alltoall_base(received, sent, even, even); });
    return received;
  }

  at::Tensor sum(const at::Tensor& values, bool in_forward) const {
    auto sums = values.clone(at::MemoryFormat::Contiguous);
    std::vector<at::Tensor> tensors{sums};
    run(Operation::kAllReduce, sums, in_forward, [&] { return group.group->allreduce(tensors); });
    return sums;
  }

  vit::Group group;

 private:
  template <typename Start>
  void run(Operation operation, const at::Tensor& sent, bool in_forward, Start start) const {
    const auto device = sent.device();
    const auto interval = Interval::begin(operation, sent.nbytes(), device);
    auto from = vit::DeviceEvent::now(device);
    vit::noting_end(start()->getFuture(), device, interval)->waitAndThrow();
    interval->wait.emplace(Interval::Wait{std::move(from), vit::DeviceEvent::now(device), in_forward});
    if (auto* step = recorder->step()) {
      step->add(interval, control);
    }
  }

  std::shared_ptr<vit::TreeReduce> control;
  std::shared_ptr<vit::SyncRecorder> recorder;
};

using CollectivesPtr = c10::intrusive_ptr<Collectives>;

void keep(AutogradContext* context, const CollectivesPtr& collectives) {
  context->saved_data["collectives"] = at::IValue::make_capsule(collectives);
}

CollectivesPtr kept(AutogradContext* context) {
  return c10::static_intrusive_pointer_cast<Collectives>(context->saved_data["collectives"].toCapsule());
}

// Its own inverse and transpose.
struct AllToAll : torch::autograd::Function<AllToAll> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& parts, const CollectivesPtr& collectives) {
    keep(context, collectives);
    return collectives->all_to_all(parts, /*in_forward=*/true);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    return {kept(context)->all_to_all(gradients.at(0), /*in_forward=*/false), at::Tensor()};
  }
};

// The sum over the ranks, each of which uses it identically for the same loss.
struct SumForAll : torch::autograd::Function<SumForAll> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& values, const CollectivesPtr& collectives) {
    keep(context, collectives);
    return collectives->sum(values, /*in_forward=*/true);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    return {gradients.at(0) * kept(context)->group.group->getSize(), at::Tensor()};
  }
};

// The same values on every rank; each uses them differently and adds to their gradient.
struct UsedInParts : torch::autograd::Function<UsedInParts> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& values, const CollectivesPtr& collectives) {
    keep(context, collectives);
    return values.view_as(values);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    return {kept(context)->sum(gradients.at(0), /*in_forward=*/false), at::Tensor()};
  }
};

// The sum of the ranks' parts. All use it identically, so each part gets its gradient.
struct SumOfParts : torch::autograd::Function<SumOfParts> {
  static at::Tensor forward(AutogradContext*, const at::Tensor& values, const CollectivesPtr& collectives) {
    return collectives->sum(values, /*in_forward=*/true);
  }

  static variable_list backward(AutogradContext*, variable_list gradients) { return {gradients.at(0), at::Tensor()}; }
};

}  // namespace

namespace vit {
struct CollectivesHandle {
  CollectivesPtr collectives;
};
}  // namespace vit

extern "C" {

// Collectives of the ranks of `group`, which compare durations by `control`.
vit::Status vit_collectives_new(vit::Group* group, vit::Group* control, vit::RecorderHandle* recorder,
                                vit::CollectivesHandle** out) {
  return guarded([&] {
    const auto& notes = recorder->recorder;
    *out = new vit::CollectivesHandle{c10::make_intrusive<Collectives>(*group, notes->comparing(*control), notes)};
  });
}

void vit_collectives_free(vit::CollectivesHandle* collectives) {
  guarded([&] { delete collectives; });
}

vit::Status vit_collectives_share(vit::CollectivesHandle* collectives, vit::CollectivesHandle** out) {
  return guarded([&] { *out = new vit::CollectivesHandle(*collectives); });
}

vit::Status vit_all_to_all(vit::CollectivesHandle* collectives, at::Tensor* parts, at::Tensor** output) {
  return guarded([&] { *output = new at::Tensor(AllToAll::apply(*parts, collectives->collectives)); });
}

vit::Status vit_used_in_parts(vit::CollectivesHandle* collectives, at::Tensor* values, at::Tensor** output) {
  return guarded([&] { *output = new at::Tensor(UsedInParts::apply(*values, collectives->collectives)); });
}

vit::Status vit_sum_of_parts(vit::CollectivesHandle* collectives, at::Tensor* values, at::Tensor** output) {
  return guarded([&] { *output = new at::Tensor(SumOfParts::apply(*values, collectives->collectives)); });
}

vit::Status vit_sum_for_all(vit::CollectivesHandle* collectives, at::Tensor* values, at::Tensor** output) {
  return guarded([&] { *output = new at::Tensor(SumForAll::apply(*values, collectives->collectives)); });
}
}
