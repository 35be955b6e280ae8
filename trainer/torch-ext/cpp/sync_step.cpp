#include "sync_step.hpp"

#include <algorithm>
#include <utility>

#include "error.hpp"

using vit::guarded;

namespace vit {

std::shared_ptr<Interval> Interval::begin(Operation operation, uint64_t bytes, at::Device device) {
  return std::make_shared<Interval>(Interval{operation, bytes, DeviceEvent::now(device)});
}

double Interval::seconds() const { return std::max(0.0, end->seconds_since(start)); }

FuturePtr noting_end(const FuturePtr& future, at::Device device, std::shared_ptr<Interval> interval) {
  return future->then(
      [device, interval = std::move(interval)](Future& done) {
        interval->end.emplace(DeviceEvent::now(device));
        return done.value();
      },
      future->elementType());
}

void SyncStep::add(std::shared_ptr<Interval> collective, const std::shared_ptr<TreeReduce>& control) {
  const auto same = [&control](const ComparedGroup& compared) { return compared.control == control; };
  auto found = std::find_if(compared_.begin(), compared_.end(), same);
  if (found == compared_.end()) {
    found = compared_.insert(found, ComparedGroup{control, {}});
  }
  found->collectives.push_back(std::move(collective));
}

void SyncStep::arrive(Operation reduction, const Group* group, const std::shared_ptr<TreeReduce>& control) {
  TORCH_CHECK(device_.is_cpu() || group, "only on the CPU can `control` sum reports");
  meeting_ = Interval::begin(reduction, 0, device_);
  report_ = report_.to(at::kDouble).clone();
  std::vector<at::Tensor> tensors{report_};
  const auto arrived =
      group ? group->group->allreduce(tensors)->getFuture() : control->start(report_, TreeReduce::Op::kSum);
  arrived_ = noting_end(arrived, device_, meeting_);
  add(meeting_, control);
}

at::Tensor SyncStep::finish() {
  if (arrived_) {
    arrived_->waitAndThrow();
    usable_.emplace(DeviceEvent::now(device_));
    if (device_.is_cpu()) {
      exchange();
    }
  }
  TORCH_CHECK(is_reduced_, "the backward pass reduced no gradients");
  return report_;
}

// Starts computing the least of the ranks' durations, which must be known.
void SyncStep::exchange() {
  for (auto& compared : compared_) {
    std::vector<double> durations;
    for (const auto& collective : compared.collectives) {
      durations.push_back(collective->seconds());
    }
    compared.least = at::tensor(durations, at::kDouble);
    compared.exchanged = compared.control->start(compared.least, TreeReduce::Op::kMin);
  }
}

// Seconds during which a collective ran, with the least duration over its ranks for each.
double SyncStep::active_seconds(std::optional<Operation> operation) const {
  std::vector<std::pair<double, double>> spans;
  for (const auto& compared : compared_) {
    const auto* least = compared.least.const_data_ptr<double>();
    for (const auto& collective : compared.collectives) {
      const double duration = *least++;
      if (collective != meeting_ && (!operation || collective->operation == *operation)) {
        const double end = collective->end->seconds_since(began_);
        spans.emplace_back(std::max(collective->start.seconds_since(began_), end - duration), end);
      }
    }
  }
  std::sort(spans.begin(), spans.end());
  double sum = 0.0, reached = -std::numeric_limits<double>::infinity();
  for (const auto& [start, end] : spans) {
    sum += std::max(0.0, end - std::max(start, reached));
    reached = std::max(reached, end);
  }
  return sum;
}

SyncTimes SyncStep::times() {
  SyncTimes times{};
  const auto of = [&times](Operation operation) -> SyncCost& { return times.of[static_cast<size_t>(operation)]; };
  for (const auto& compared : compared_) {
    for (const auto& collective : compared.collectives) {
      for (auto* cost : {&of(collective->operation), &times.all}) {
        cost->bytes += collective->bytes;
        cost->collectives += collective != meeting_;
      }
    }
  }
  if (!arrived_) {
    return times;
  }
  if (!compared_.front().exchanged) {
    exchange();
  }
  for (const auto& compared : compared_) {
    compared.exchanged->waitAndThrow();
    const auto* least = compared.least.const_data_ptr<double>();
    for (const auto& collective : compared.collectives) {
      const double duration = *least++;
      auto& cost = of(collective->operation);
      if (collective == meeting_) {
        const double straggler = std::max(0.0, meeting_->seconds() - duration);
        cost.straggler += straggler;
        cost.exposed += std::max(0.0, usable_->seconds_since(meeting_->start) - straggler);
      } else if (collective->wait) {
        const double until = collective->wait->until.seconds_since(began_);
        const double from = collective->wait->from.seconds_since(began_);
        const double all_there = collective->end->seconds_since(began_) - duration;
        const double exposed = std::max(0.0, until - std::max(from, all_there));
        cost.exposed += exposed;
        cost.straggler += std::max(0.0, until - from - exposed);
        times.waited_in_forward += collective->wait->in_forward ? std::max(0.0, until - from) : 0.0;
      }
    }
  }
  for (size_t operation = 0; operation < kOperations; ++operation) {
    auto& cost = times.of[operation];
    cost.total = std::max(active_seconds(static_cast<Operation>(operation)), cost.exposed);
    times.all.exposed += cost.exposed;
    times.all.straggler += cost.straggler;
  }
  times.all.total = std::max(active_seconds(std::nullopt), times.all.exposed);
  return times;
}

std::shared_ptr<SyncStep> SyncRecorder::take() {
  TORCH_CHECK(step_ != nullptr, "the step was not begun");
  return std::exchange(step_, nullptr);
}

std::shared_ptr<TreeReduce> SyncRecorder::comparing(const Group& control) {
  for (const auto& [group, tree] : trees_) {
    if (group == control.group) {
      return tree;
    }
  }
  return trees_.emplace_back(control.group, std::make_shared<TreeReduce>(control.group)).second;
}

}  // namespace vit

extern "C" {

// Records the cost of collectives. `control` has all ranks on the CPU; `reports`, with all ranks on
// the device, sums reports. If it is null `control` does.
vit::Status vit_recorder_new(vit::Group* reports, vit::Group* control, vit::RecorderHandle** out) {
  return guarded([&] {
    auto group = reports ? std::make_optional(*reports) : std::nullopt;
    *out = new vit::RecorderHandle{std::make_shared<vit::SyncRecorder>(std::move(group), *control)};
  });
}

void vit_recorder_free(vit::RecorderHandle* recorder) {
  guarded([&] { delete recorder; });
}

void vit_measurement_free(vit::Measurement* measurement) {
  guarded([&] { delete measurement; });
}

// The times of a step, which the device must have finished. Called some work later, it does not
// wait, except on a device other than the CPU, for the other ranks to call it too.
//
// straggler: own last gradient ready -> every rank's last gradient ready; and waiting for other
//            collectives before every rank had started them.
// exposed:   from then -> reduced gradients and report usable; and other waiting for collectives.
// total:     time during which a collective ran that every rank had started; at least `exposed`.
//
// A rank that is late by D adds D to the others' straggler and to nothing else. A slower network
// adds to total, and to exposed if no computation hides it, but not to straggler.
vit::Status vit_measurement_times(const vit::Measurement* measurement, vit::SyncTimes* times) {
  return guarded([&] { *times = measurement->step->times(); });
}
}
