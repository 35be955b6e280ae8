// Gradient averaging by the Reducer of PyTorch's DistributedDataParallel, with a communication hook that times it.
//
// The hook does what AllReduceCommHook does (torch/csrc/distributed/c10d/default_comm_hooks.hpp): averages a bucket
// over all ranks without waiting; where asked to, in bf16, as bf16_compress_hook of PyTorch's Python side does. Besides,
// it notes when each bucket's all-reduce starts and ends, and just before the step's last bucket it starts the
// *arrival*: a sum of a few numbers over all ranks, which ends when the last rank has its last gradient. On the CPU a
// group of its own adds it up. On another device it stays there, in the queue of the gradients, and the host waits for
// nothing.
//
// An all-reduce ends no sooner than its last rank has begun it, so its duration on one rank is communication and wait.
// The rank that came last did not wait: the least duration over the ranks is what communication took, and what other
// all-reduces before it in the same queue took. Once their durations are known the ranks exchange them (a few numbers
// that no step waits for), and each takes from its own ones what was wait. No clocks are compared. See
// vit_measurement_times for what follows.
#include <algorithm>
#include <memory>
#include <optional>
#include <vector>

#include <torch/csrc/distributed/c10d/reducer.hpp>

#include "error.hpp"
#include "moment.hpp"
#include "process_group.hpp"
#include "tensors.hpp"
#include "tree_reduce.hpp"

using vit::guarded;
using vit::Moment;
using vit::TreeReduce;

namespace {

using Future = c10::ivalue::Future;
using FuturePtr = c10::intrusive_ptr<Future>;

// The end is noted before the future completes that the reader waits for, if need be by a process group's thread.
struct Interval {
  Moment start;
  std::optional<Moment> end;

  double seconds() const { return std::max(0.0, end->seconds_since(start)); }
};

// What one step's backward pass noted.
struct Step {
  Moment began;
  std::vector<std::shared_ptr<Interval>> buckets;
  uint64_t bytes = 0;
  at::Tensor arrival;
  // Whether the backward pass came to its last bucket.
  bool is_reduced = false;
  FuturePtr arrived;
  // From the own last gradient to every rank's.
  std::shared_ptr<Interval> meeting;
  std::optional<Moment> usable;
  // Durations of the meeting and of each bucket's all-reduce, the least over the ranks once `exchanged`.
  at::Tensor least;
  FuturePtr exchanged;

  // Seconds in which some bucket was under way, where each took no longer than the duration given for it.
  double under_way(const double* durations) const {
    std::vector<std::pair<double, double>> spans;
    for (const auto& bucket : buckets) {
      const double end = bucket->end->seconds_since(began);
      spans.emplace_back(std::max(bucket->start.seconds_since(began), end - *durations++), end);
    }
    std::sort(spans.begin(), spans.end());
    double sum = 0.0, reached = 0.0;
    for (const auto& [start, end] : spans) {
      sum += std::max(0.0, end - std::max(start, reached));
      reached = std::max(reached, end);
    }
    return sum;
  }
};

class TimedAllReduce : public c10d::CommHookInterface {
 public:
  // The arrival is added up by `arrivals`, or where there are none like the gradients.
  TimedAllReduce(vit::Group gradients, std::shared_ptr<TreeReduce> arrivals, bool in_bf16)
      : gradients_(std::move(gradients)), arrivals_(std::move(arrivals)), in_bf16_(in_bf16) {}

  FuturePtr runHook(c10d::GradBucket& bucket) override {
    auto& buffer = bucket.getBufferRef();
    step->is_reduced |= bucket.isLast();
    if (gradients_.group->getSize() == 1) {
      auto done = c10::make_intrusive<Future>(c10::TensorType::get());
      done->markCompleted(buffer);
      return done;
    }
    c10d::AllreduceOptions options;
    if (gradients_.averages) {
      options.reduceOp = c10d::ReduceOp::AVG;
    } else {
      buffer.div_(gradients_.group->getSize());
    }
    if (bucket.isLast()) {
      start_arrival(buffer.device());
    }
    const bool compress = in_bf16_ && buffer.scalar_type() != at::kBFloat16;
    const auto sent = compress ? buffer.to(at::kBFloat16) : buffer;
    step->bytes += sent.nbytes();
    step->buckets.push_back(begin(buffer.device()));
    std::vector<at::Tensor> tensors{sent};
    const auto queued = gradients_.group->allreduce(tensors, options)->getFuture();
    const auto reduced = noting_end(queued, buffer.device(), step->buckets.back());
    return compress ? copied_back(reduced, sent, buffer) : reduced;
  }

  at::Tensor parseHookResult(const c10::IValue& result) override {
    return c10d::detail::parseCppCommHookResult(result);
  }

  std::shared_ptr<Step> step;

 private:
  static std::shared_ptr<Interval> begin(at::Device device) {
    return std::make_shared<Interval>(Interval{Moment::now(device), std::nullopt});
  }

  // A future that completes like `future`, after the end of `interval` is noted. On CUDA a callback runs on a stream
  // that waits for the future's kernels, and those that wait for the result wait for this stream.
  static FuturePtr noting_end(const FuturePtr& future, at::Device device, std::shared_ptr<Interval> interval) {
    return future->then(
        [device, interval = std::move(interval)](Future& done) {
          interval->end.emplace(Moment::now(device));
          return done.value();
        },
        future->elementType());
  }

  // A future of `buffer` once it has the values of `sent`.
  static FuturePtr copied_back(const FuturePtr& future, at::Tensor sent, at::Tensor buffer) {
    return future->then(
        [sent = std::move(sent), buffer = std::move(buffer)](Future& done) -> c10::IValue {
          c10::NoGradGuard no_grad;
          TORCH_CHECK(!done.hasError(), done.tryRetrieveErrorMessage());
          return buffer.copy_(sent);
        },
        c10::TensorType::get());
  }

  void start_arrival(at::Device device) {
    step->meeting = begin(device);
    step->arrival = step->arrival.to(at::kDouble).clone();
    std::vector<at::Tensor> tensors{step->arrival};
    const auto arrived = arrivals_ ? arrivals_->start(step->arrival, TreeReduce::Op::kSum)
                                   : gradients_.group->allreduce(tensors)->getFuture();
    step->arrived = noting_end(arrived, device, step->meeting);
  }

  vit::Group gradients_;
  std::shared_ptr<TreeReduce> arrivals_;
  bool in_bf16_;
};

// Starts to find the least of the ranks' durations, which must be known.
void exchange(Step& step, TreeReduce& control) {
  std::vector<double> durations{step.meeting->seconds()};
  for (const auto& bucket : step.buckets) {
    durations.push_back(bucket->seconds());
  }
  step.least = at::tensor(durations, at::kDouble);
  step.exchanged = control.start(step.least, TreeReduce::Op::kMin);
}

}  // namespace

namespace vit {

struct Reducer {
  std::unique_ptr<c10d::Reducer> reducer;
  TimedAllReduce* hook;  // owned by `reducer`
  std::shared_ptr<TreeReduce> control;
  at::Device device;
};

struct Measurement {
  std::shared_ptr<Step> step;
  std::shared_ptr<TreeReduce> control;
};

struct SyncTimes {
  double total;
  double exposed;
  double straggler;
  uint64_t bytes;
};

}  // namespace vit

extern "C" {

// Hooks into the gradients of `parameters`, which must be the same in number, order and shape on every rank. Arrivals
// are added up by `control` or, where `arrives_with_gradients`, by `gradients`.
vit::Status vit_reducer_new(at::Tensor* const* parameters, size_t count, vit::Group* gradients, vit::Group* control,
                            size_t bucket_bytes, bool in_bf16, bool arrives_with_gradients, vit::Reducer** out) {
  return guarded([&] {
    auto list = vit::tensor_list(parameters, count);
    const auto device = list.at(0).device();
    TORCH_CHECK(device.is_cpu() || arrives_with_gradients, "only on the CPU can a group of its own add up arrivals");
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
    auto tree = std::make_shared<TreeReduce>(control->group);
    auto hook = std::make_unique<TimedAllReduce>(*gradients, arrives_with_gradients ? nullptr : tree, in_bf16);
    auto* borrowed = hook.get();
    reducer->register_comm_hook(std::move(hook));
    *out = new vit::Reducer{std::move(reducer), borrowed, std::move(tree), device};
  });
}

void vit_reducer_free(vit::Reducer* reducer) {
  guarded([&] { delete reducer; });
}

// Arms the hooks for the backward pass that follows; without this call a backward pass only accumulates gradients.
// `arrival` is added up over the ranks during that pass.
vit::Status vit_reducer_prepare(vit::Reducer* reducer, at::Tensor* arrival) {
  return guarded([&] {
    if (reducer->reducer->should_rebuild_buckets()) {
      reducer->reducer->rebuild_buckets();
    }
    reducer->hook->step = std::make_shared<Step>(Step{Moment::now(reducer->device)});
    reducer->hook->step->arrival = arrival->detach();
    reducer->reducer->prepare_for_backward({});
  });
}

// Call it right after the backward pass: the sums of `arrival`, and what is measured of the step. On a device other
// than the CPU its stream waits for both, and the host does not.
vit::Status vit_reducer_finish(vit::Reducer* reducer, at::Tensor** sums, vit::Measurement** measurement) {
  return guarded([&] {
    const auto step = std::move(reducer->hook->step);
    TORCH_CHECK(step != nullptr, "the step was not prepared");
    if (step->arrived) {
      step->arrived->waitAndThrow();
      step->usable.emplace(Moment::now(reducer->device));
      if (reducer->device.is_cpu()) {
        exchange(*step, *reducer->control);
      }
    }
    TORCH_CHECK(step->is_reduced, "the backward pass reduced no gradients");
    *sums = new at::Tensor(step->arrival);
    *measurement = new vit::Measurement{step, reducer->control};
  });
}

void vit_measurement_free(vit::Measurement* measurement) {
  guarded([&] { delete measurement; });
}

// The times of a step that the device has come to the end of. Called some work after its end, it waits for nothing but,
// on a device other than the CPU, for the other ranks to call it too.
//
// straggler: own last gradient ready -> every rank's last gradient ready.
// exposed:   from then -> averaged gradients usable, and the arrival known.
// total:     time in which any gradient all-reduce was under way that every rank had begun, and at least `exposed`.
//
// A rank that is late by D lengthens the others' straggler by D and nothing else. A slower network lengthens total, and
// exposed where no computation hides it, and not straggler: the arrival, slower too, is as slow on every rank.
vit::Status vit_measurement_times(const vit::Measurement* measurement, vit::SyncTimes* times) {
  return guarded([&] {
    const auto& step = measurement->step;
    *times = {0.0, 0.0, 0.0, step->bytes};
    if (!step->arrived) {
      return;
    }
    if (!step->exchanged) {
      exchange(*step, *measurement->control);
    }
    step->exchanged->waitAndThrow();
    const auto* least = step->least.const_data_ptr<double>();
    times->straggler = std::max(0.0, step->meeting->seconds() - least[0]);
    times->exposed = std::max(0.0, step->usable->seconds_since(step->meeting->start) - times->straggler);
    times->total = std::max(step->under_way(least + 1), times->exposed);
  });
}
}
