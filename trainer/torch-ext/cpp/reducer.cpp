// Gradient averaging by the Reducer of PyTorch's DistributedDataParallel, with a communication hook that times it.
//
// The hook does what AllReduceCommHook does (torch/csrc/distributed/c10d/default_comm_hooks.hpp): divides a bucket by
// the world size and adds it up over all ranks without waiting. Besides, it notes when each bucket's all-reduce
// starts and ends, and just before the step's last bucket it starts the *arrival*: an all-reduce of a few numbers on
// a group of its own, which ends when the last rank has its last gradient. See vit_reducer_finish for what follows.
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <vector>

#include <torch/csrc/distributed/c10d/reducer.hpp>

#include "error.hpp"
#include "process_group.hpp"
#include "tensors.hpp"

using vit::guarded;

namespace {

using Clock = std::chrono::steady_clock;
using Future = c10::ivalue::Future;
using FuturePtr = c10::intrusive_ptr<Future>;

double seconds(Clock::duration duration) {
  return std::max(0.0, std::chrono::duration<double>(duration).count());
}

struct Interval {
  Clock::time_point start;
  Clock::time_point end;
};

// Length of the union of intervals whose starts ascend.
Clock::duration covered(const std::vector<std::shared_ptr<Interval>>& intervals) {
  Clock::duration sum{0};
  Clock::time_point reached = Clock::time_point::min();
  for (const auto& interval : intervals) {
    const auto start = std::max(interval->start, reached);
    if (interval->end > start) {
      sum += interval->end - start;
      reached = interval->end;
    }
  }
  return sum;
}

// What one step's backward pass noted. The ends are written by the process groups' threads, each before the future
// completes that the reader waits for.
struct Step {
  std::vector<std::shared_ptr<Interval>> buckets;
  std::vector<c10::intrusive_ptr<c10d::Work>> device_works;
  uint64_t bytes = 0;
  at::Tensor arrival;
  FuturePtr arrived;
  Clock::time_point own_ready;
  Clock::time_point all_ready;
};

class TimedAllReduce : public c10d::CommHookInterface {
 public:
  TimedAllReduce(c10::intrusive_ptr<c10d::ProcessGroup> gradients, c10::intrusive_ptr<c10d::ProcessGroup> control)
      : gradients_(std::move(gradients)), control_(std::move(control)) {}

  FuturePtr runHook(c10d::GradBucket& bucket) override {
    auto& buffer = bucket.getBufferRef();
    if (gradients_->getSize() == 1) {
      if (bucket.isLast()) {
        step->arrival = step->arrival.to(at::kCPU, at::kDouble).clone();
      }
      auto done = c10::make_intrusive<Future>(c10::TensorType::get());
      done->markCompleted(buffer);
      return done;
    }
    buffer.div_(gradients_->getSize());
    if (bucket.isLast()) {
      start_arrival();
    }
    step->bytes += buffer.nbytes();
    auto interval = std::make_shared<Interval>(Interval{Clock::now(), Clock::time_point::min()});
    std::vector<at::Tensor> tensors{buffer};
    auto work = gradients_->allreduce(tensors);
    if (!buffer.is_cpu()) {
      // A future of a CUDA backend is complete once its kernels are queued: their own timers are read at the end.
      step->device_works.push_back(work);
      return work->getFuture();
    }
    step->buckets.push_back(interval);
    return noting_end(work->getFuture(), [interval] { interval->end = Clock::now(); });
  }

  at::Tensor parseHookResult(const c10::IValue& result) override {
    return c10d::detail::parseCppCommHookResult(result);
  }

  std::shared_ptr<Step> step;

 private:
  // A future that completes like `future`, after `note`.
  template <typename Note>
  static FuturePtr noting_end(const FuturePtr& future, Note note) {
    return future->then(
        [note = std::move(note)](Future& done) {
          note();
          return done.value();
        },
        future->elementType());
  }

  void start_arrival() {
    // For a CUDA tensor this copy waits for the stream, and with it for the last gradient.
    step->arrival = step->arrival.to(at::kCPU, at::kDouble).clone();
    step->own_ready = Clock::now();
    std::vector<at::Tensor> tensors{step->arrival};
    step->arrived = noting_end(control_->allreduce(tensors)->getFuture(), [step = step] { step->all_ready = Clock::now(); });
  }

  c10::intrusive_ptr<c10d::ProcessGroup> gradients_;
  c10::intrusive_ptr<c10d::ProcessGroup> control_;
};

}  // namespace

namespace vit {

struct Reducer {
  std::unique_ptr<c10d::Reducer> reducer;
  TimedAllReduce* hook;  // owned by `reducer`
  at::Device device;
};

struct SyncTimes {
  double total;
  double exposed;
  double straggler;
  uint64_t bytes;
};

}  // namespace vit

extern "C" {

// Hooks into the gradients of `parameters`, which must be the same in number, order and shape on every rank.
vit::Status vit_reducer_new(at::Tensor* const* parameters, size_t count, vit::Group* gradients, vit::Group* control,
                            size_t bucket_bytes, vit::Reducer** out) {
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
    auto hook = std::make_unique<TimedAllReduce>(gradients->group, control->group);
    auto* borrowed = hook.get();
    reducer->register_comm_hook(std::move(hook));
    if (!device.is_cpu()) {
      gradients->group->enableCollectivesTiming();
    }
    *out = new vit::Reducer{std::move(reducer), borrowed, device};
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
    reducer->hook->step = std::make_shared<Step>();
    reducer->hook->step->arrival = arrival->detach();
    reducer->reducer->prepare_for_backward({});
  });
}

// Call it right after the backward pass: gives the step's times and writes the sums of `arrival` (as many as it has
// elements, in double precision).
//
// straggler: own last gradient ready -> every rank's last gradient ready (the arrival ended).
// exposed:   from then -> averaged gradients usable (now).
// total:     time in which any gradient all-reduce was under way, less the straggler wait, and at least `exposed`.
//
// A rank that is late by D lengthens the others' straggler by D and the union of their all-reduces by D, so that
// exposed stays, and total too but for pauses between all-reduces, which the wait fills. A slower wire lengthens
// total and exposed only.
vit::Status vit_reducer_finish(vit::Reducer* reducer, double* sums, size_t count, vit::SyncTimes* times) {
  return guarded([&] {
    const auto step = std::move(reducer->hook->step);
    TORCH_CHECK(step != nullptr, "the step was not prepared");
    *times = {0.0, 0.0, 0.0, step->bytes};
    if (step->arrived) {
      if (!reducer->device.is_cpu()) {
        c10::impl::VirtualGuardImpl(reducer->device.type()).getStream(reducer->device).synchronize();
      }
      const auto usable = Clock::now();
      step->arrived->waitAndThrow();
      times->straggler = seconds(step->all_ready - step->own_ready);
      times->exposed = seconds(usable - step->all_ready);
      double under_way = seconds(covered(step->buckets));
      for (const auto& work : step->device_works) {
        under_way += work->getDuration() / 1000.0;
      }
      times->total = std::max(under_way - times->straggler, times->exposed);
    }
    TORCH_CHECK(step->arrival.is_cpu() && static_cast<size_t>(step->arrival.numel()) == count,
                "the backward pass reduced no gradients");
    std::copy_n(step->arrival.const_data_ptr<double>(), count, sums);
  });
}
}
