// Gradient averaging by the Reducer of PyTorch's DistributedDataParallel, timed by a hook.
//
// Like AllReduceCommHook of c10d, the hook averages a bucket over all ranks without waiting;
// optionally in bf16, like PyTorch's bf16_compress_hook. It also records when each bucket's
// all-reduce starts and ends, and reduces the report just before the step's last bucket.
#include <algorithm>
#include <memory>
#include <vector>

#include <torch/csrc/distributed/c10d/reducer.hpp>

#include "error.hpp"
#include "sync_step.hpp"
#include "tensors.hpp"

using vit::guarded;
using vit::FuturePtr;
using vit::Interval;
using vit::Operation;
using vit::SyncRecorder;
using vit::TreeReduce;

namespace {

class TimedAllReduce : public c10d::CommHookInterface {
 public:
  TimedAllReduce(vit::Group gradients, std::shared_ptr<TreeReduce> control, std::shared_ptr<SyncRecorder> recorder,
                 bool in_bf16)
      : gradients_(std::move(gradients)),
        control_(std::move(control)),
        recorder_(std::move(recorder)),
        in_bf16_(in_bf16) {}

  FuturePtr runHook(c10d::GradBucket& bucket) override {
    auto& buffer = bucket.getBufferRef();
    TORCH_CHECK(recorder_->step() != nullptr, "the step was not begun");
    if (bucket.isLast()) {
      recorder_->step()->set_reduced();
      // Right before the step's last reduction. Ranks that compute a model together report too,
      // even if no other rank has their gradients.
      if (recorder_->has_peers()) {
        recorder_->arrive(Operation::kAllReduce);
      }
    }
    if (gradients_.group->getSize() == 1) {
      auto done = c10::make_intrusive<vit::Future>(c10::TensorType::get());
      done->markCompleted(buffer);
      return done;
    }
    c10d::AllreduceOptions options;
    if (gradients_.averages) {
      options.reduceOp = c10d::ReduceOp::AVG;
    } else {
      buffer.div_(gradients_.group->getSize());
    }
    const bool compress = in_bf16_ && buffer.scalar_type() != at::kBFloat16;
    const auto sent = compress ? buffer.to(at::kBFloat16) : buffer;
    const auto interval = Interval::begin(Operation::kAllReduce, sent.nbytes(), buffer.device());
    recorder_->step()->add(interval, control_);
    std::vector<at::Tensor> tensors{sent};
    const auto queued = gradients_.group->allreduce(tensors, options)->getFuture();
    const auto reduced = vit::noting_end(queued, buffer.device(), interval);
    return compress ? copied_back(reduced, sent, buffer) : reduced;
  }

  at::Tensor parseHookResult(const c10::IValue& result) override {
    return c10d::detail::parseCppCommHookResult(result);
  }

 private:
  // A future of `buffer` with the values of `sent`.
  static FuturePtr copied_back(const FuturePtr& future, at::Tensor sent, at::Tensor buffer) {
    return future->then(
        [sent = std::move(sent), buffer = std::move(buffer)](vit::Future& done) -> c10::IValue {
          c10::NoGradGuard no_grad;
          TORCH_CHECK(!done.hasError(), done.tryRetrieveErrorMessage());
          return buffer.copy_(sent);
        },
        c10::TensorType::get());
  }

  vit::Group gradients_;
  std::shared_ptr<TreeReduce> control_;
  std::shared_ptr<SyncRecorder> recorder_;
  bool in_bf16_;
};

}  // namespace

namespace vit {

struct Reducer {
  std::unique_ptr<c10d::Reducer> reducer;
  std::shared_ptr<SyncRecorder> recorder;
  at::Device device;
};

}  // namespace vit

extern "C" {

// Hooks into the gradients of `parameters`, which must be equal in number, order and shape on every
// rank of `gradients`. Those ranks compare durations through `control`.
vit::Status vit_reducer_new(at::Tensor* const* parameters, size_t count, vit::Group* gradients, vit::Group* control,
                            vit::RecorderHandle* recorder, size_t bucket_bytes, bool in_bf16, vit::Reducer** out) {
  return guarded([&] {
    auto list = vit::tensor_list(parameters, count);
    const auto device = list.at(0).device();
    const std::vector<bool> sparse(count, false);
    const size_t first_bucket = std::min<size_t>(c10d::kDefaultFirstBucketBytes, bucket_bytes);
    auto [buckets, limits] = c10d::compute_bucket_assignment_by_size(list, {first_bucket, bucket_bytes}, sparse);
    // Gradients become ready from the last layer to the first.
    std::reverse(buckets.begin(), buckets.end());
    auto reducer = std::make_unique<c10d::Reducer>(
        std::move(list), std::move(buckets), gradients->group, sparse, static_cast<int64_t>(bucket_bytes),
        /*find_unused_parameters=*/false, /*gradient_as_bucket_view=*/true,
        /*param_names=*/std::unordered_map<size_t, std::string>{}, static_cast<int64_t>(first_bucket),
        /*skip_all_reduce_unused_params=*/false, /*use_python_reducer=*/false,
        /*bucket_bytes_cap_list=*/std::vector<int64_t>{});
    const auto& notes = recorder->recorder;
    reducer->register_comm_hook(
        std::make_unique<TimedAllReduce>(*gradients, notes->comparing(*control), notes, in_bf16));
    *out = new vit::Reducer{std::move(reducer), notes, device};
  });
}

void vit_reducer_free(vit::Reducer* reducer) {
  guarded([&] { delete reducer; });
}

// Begins a step.
vit::Status vit_reducer_begin(vit::Reducer* reducer) {
  return guarded([&] { reducer->recorder->begin(reducer->device); });
}

// Arms the hooks for the next backward pass; without this call a backward pass only accumulates
// gradients. `report` is summed over the ranks during that pass.
vit::Status vit_reducer_prepare(vit::Reducer* reducer, at::Tensor* report) {
  return guarded([&] {
    TORCH_CHECK(reducer->recorder->step() != nullptr, "the step was not begun");
    if (reducer->reducer->should_rebuild_buckets()) {
      reducer->reducer->rebuild_buckets();
    }
    reducer->recorder->step()->set_report(*report);
    reducer->reducer->prepare_for_backward({});
  });
}

// Call it right after the backward pass: the sums of `report`, and the step's measurement. On a
// device other than the CPU its stream waits for both, and the host does not.
vit::Status vit_reducer_finish(vit::Reducer* reducer, at::Tensor** sums, vit::Measurement** measurement) {
  return guarded([&] {
    const auto step = reducer->recorder->take();
    *sums = new at::Tensor(step->finish());
    *measurement = new vit::Measurement{step};
  });
}
}
