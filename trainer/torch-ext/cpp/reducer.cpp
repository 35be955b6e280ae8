// Gradient averaging by the Reducer of PyTorch's DistributedDataParallel, with a communication hook that times it.
//
// The hook does what AllReduceCommHook does (torch/csrc/distributed/c10d/default_comm_hooks.hpp): divides a bucket by
// the world size and adds it up over all ranks without waiting; where asked to, in bf16, as bf16_compress_hook of
// PyTorch's Python side does. Besides, it notes when each bucket's all-reduce starts and ends, and just before the
// step's last bucket it starts the *arrival*: a sum of a few numbers over all ranks on a group of its own, which ends when
// the last rank has its last gradient.
//
// An all-reduce ends no sooner than its last rank has begun it, so its duration on one rank is communication and wait.
// The rank that came last did not wait: the least duration over the ranks is what communication took. At the end of a
// step the ranks exchange their durations (one small all-reduce that nobody waits for), and each takes from its own
// ones what was wait. No clocks are compared. See vit_measurement_times for what follows.
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
#include "tree_sum.hpp"

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

// Length of the union of intervals, each cut at its start to the duration given for it.
double covered(const std::vector<std::shared_ptr<Interval>>& intervals, const double* durations) {
  std::vector<Interval> cut;
  for (const auto& interval : intervals) {
    const auto duration = std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(*durations++));
    cut.push_back({std::max(interval->start, interval->end - duration), interval->end});
  }
  std::sort(cut.begin(), cut.end(), [](const auto& left, const auto& right) { return left.start < right.start; });
  Clock::duration sum{0};
  Clock::time_point reached = Clock::time_point::min();
  for (const auto& interval : cut) {
    const auto start = std::max(interval.start, reached);
    if (interval.end > start) {
      sum += interval.end - start;
      reached = interval.end;
    }
  }
  return seconds(sum);
}

// What one step's backward pass noted. The ends are written by the process groups' threads, each before the future
// completes that the reader waits for.
struct Step {
  std::vector<std::shared_ptr<Interval>> buckets;
  std::vector<c10::intrusive_ptr<c10d::Work>> device_works;
  uint64_t bytes = 0;
  at::Tensor arrival;
  // Whether the backward pass came to its last bucket.
  bool is_reduced = false;
  FuturePtr arrived;
  Clock::time_point own_ready;
  Clock::time_point all_ready;
  Clock::time_point usable;
  // Durations of the arrival and of each bucket's all-reduce, the least over the ranks once `exchanged`.
  at::Tensor least;
  c10::intrusive_ptr<c10d::Work> exchanged;
};

class TimedAllReduce : public c10d::CommHookInterface {
 public:
  TimedAllReduce(c10::intrusive_ptr<c10d::ProcessGroup> gradients, c10::intrusive_ptr<c10d::ProcessGroup> control,
                 bool in_bf16)
      : gradients_(std::move(gradients)), arrivals_(std::move(control)), in_bf16_(in_bf16) {}

  FuturePtr runHook(c10d::GradBucket& bucket) override {
    auto& buffer = bucket.getBufferRef();
    step->is_reduced |= bucket.isLast();
    if (gradients_->getSize() == 1) {
      auto done = c10::make_intrusive<Future>(c10::TensorType::get());
      done->markCompleted(buffer);
      return done;
    }
    buffer.div_(gradients_->getSize());
    if (bucket.isLast()) {
      start_arrival();
    }
    const bool compress = in_bf16_ && buffer.scalar_type() != at::kBFloat16;
    const auto sent = compress ? buffer.to(at::kBFloat16) : buffer;
    step->bytes += sent.nbytes();
    auto interval = std::make_shared<Interval>(Interval{Clock::now(), Clock::time_point::min()});
    std::vector<at::Tensor> tensors{sent};
    auto work = gradients_->allreduce(tensors);
    auto reduced = work->getFuture();
    if (buffer.is_cpu()) {
      step->buckets.push_back(interval);
      reduced = noting_end(reduced, [interval] { interval->end = Clock::now(); });
    } else {
      // A future of a CUDA backend is complete once its kernels are queued: their own timers are read at the end.
      step->device_works.push_back(work);
    }
    return compress ? copied_back(reduced, sent, buffer) : reduced;
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

  // A future of `buffer` once it has the values of `sent`. On CUDA a callback runs on a stream that waits for the
  // future's kernels, and those that wait for the result wait for this stream.
  static FuturePtr copied_back(const FuturePtr& future, at::Tensor sent, at::Tensor buffer) {
    return future->then(
        [sent = std::move(sent), buffer = std::move(buffer)](Future& done) -> c10::IValue {
          c10::NoGradGuard no_grad;
          TORCH_CHECK(!done.hasError(), done.tryRetrieveErrorMessage());
          return buffer.copy_(sent);
        },
        c10::TensorType::get());
  }

  void start_arrival() {
    // For a CUDA tensor this copy waits for the stream, and with it for the last gradient.
    step->arrival = step->arrival.to(at::kCPU, at::kDouble).clone();
    step->own_ready = Clock::now();
    step->arrived = noting_end(arrivals_.start(step->arrival), [step = step] { step->all_ready = Clock::now(); });
  }

  c10::intrusive_ptr<c10d::ProcessGroup> gradients_;
  vit::TreeSum arrivals_;
  bool in_bf16_;
};

// Starts to find the least of the ranks' durations.
void exchange(Step& step, c10d::ProcessGroup& control) {
  std::vector<double> durations{seconds(step.all_ready - step.own_ready)};
  for (const auto& bucket : step.buckets) {
    durations.push_back(seconds(bucket->end - bucket->start));
  }
  for (const auto& work : step.device_works) {
    durations.push_back(work->getDuration() / 1000.0);
  }
  step.least = at::tensor(durations, at::kDouble);
  c10d::AllreduceOptions options;
  options.reduceOp = c10d::ReduceOp::MIN;
  std::vector<at::Tensor> tensors{step.least};
  step.exchanged = control.allreduce(tensors, options);
}

}  // namespace

namespace vit {

struct Reducer {
  std::unique_ptr<c10d::Reducer> reducer;
  TimedAllReduce* hook;  // owned by `reducer`
  c10::intrusive_ptr<c10d::ProcessGroup> gradients;
  c10::intrusive_ptr<c10d::ProcessGroup> control;
  at::Device device;
};

struct Measurement {
  std::shared_ptr<Step> step;
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
                            size_t bucket_bytes, bool in_bf16, vit::Reducer** out) {
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
    auto hook = std::make_unique<TimedAllReduce>(gradients->group, control->group, in_bf16);
    auto* borrowed = hook.get();
    reducer->register_comm_hook(std::move(hook));
    if (!device.is_cpu()) {
      gradients->group->enableCollectivesTiming();
    }
    *out = new vit::Reducer{std::move(reducer), borrowed, gradients->group, control->group, device};
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

// Call it right after the backward pass: the sums of `arrival`, and what is measured of the step.
vit::Status vit_reducer_finish(vit::Reducer* reducer, at::Tensor** sums, vit::Measurement** measurement) {
  return guarded([&] {
    const auto step = std::move(reducer->hook->step);
    TORCH_CHECK(step != nullptr, "the step was not prepared");
    if (step->arrived) {
      // Before synchronising with the device: if a peer is lost, the arrival fails at once, while NCCL's kernels would
      // wait for that peer.
      try {
        step->arrived->waitAndThrow();
      } catch (...) {
        reducer->gradients->abort();
        throw;
      }
      if (!reducer->device.is_cpu()) {
        c10::impl::VirtualGuardImpl(reducer->device.type()).getStream(reducer->device).synchronize();
      }
      step->usable = Clock::now();
      exchange(*step, *reducer->control);
    }
    TORCH_CHECK(step->is_reduced, "the backward pass reduced no gradients");
    *sums = new at::Tensor(step->arrival);
    *measurement = new vit::Measurement{step};
  });
}

void vit_measurement_free(vit::Measurement* measurement) {
  guarded([&] { delete measurement; });
}

// The times of a step. Called some work after its end, it waits for nothing.
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
    if (!step->exchanged) {
      return;
    }
    step->exchanged->wait();
    const auto* least = step->least.const_data_ptr<double>();
    times->straggler = std::max(0.0, seconds(step->all_ready - step->own_ready) - least[0]);
    times->exposed = std::max(0.0, seconds(step->usable - step->own_ready) - times->straggler);
    double under_way = covered(step->buckets, least + 1);
    for (size_t index = 0; index < step->device_works.size(); ++index) {
      under_way += least[1 + index];
    }
    times->total = std::max(under_way, times->exposed);
  });
}
}
