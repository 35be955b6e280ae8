#include "sync_step.hpp"

#include <algorithm>
#include <utility>

#include "error.hpp"

using vit::guarded;

namespace vit {

std::shared_ptr<Interval> Interval::begin(Operation operation, uint64_t bytes, at::Device device) {
  return std::make_shared<Interval>(Interval{operation, bytes, Moment::now(device)});
}

double Interval::seconds() const { return std::max(0.0, end->seconds_since(start)); }

FuturePtr noting_end(const FuturePtr& future, at::Device device, std::shared_ptr<Interval> interval) {
  return future->then(
      [device, interval = std::move(interval)](Future& done) {
        interval->end.emplace(Moment::now(device));
        return done.value();
      },
      future->elementType());
}

void SyncStep::arrive(Operation reduction, const Group& gradients, TreeReduce* arrivals) {
  meeting_ = Interval::begin(reduction, 0, device_);
  arrival_ = arrival_.to(at::kDouble).clone();
  std::vector<at::Tensor> tensors{arrival_};
  const auto arrived =
      arrivals ? arrivals->start(arrival_, TreeReduce::Op::kSum) : gradients.group->allreduce(tensors)->getFuture();
  arrived_ = noting_end(arrived, device_, meeting_);
}

at::Tensor SyncStep::finish(TreeReduce& control) {
  if (arrived_) {
    arrived_->waitAndThrow();
    usable_.emplace(Moment::now(device_));
    if (device_.is_cpu()) {
      exchange(control);
    }
  }
  TORCH_CHECK(is_reduced_, "the backward pass reduced no gradients");
  return arrival_;
}

// Starts to find the least of the ranks' durations, which must be known.
void SyncStep::exchange(TreeReduce& control) {
  std::vector<double> durations{meeting_->seconds()};
  for (const auto& collective : collectives_) {
    durations.push_back(collective->seconds());
  }
  least_ = at::tensor(durations, at::kDouble);
  exchanged_ = control.start(least_, TreeReduce::Op::kMin);
}

// Seconds in which some collective was under way, where each took no longer than the least duration given for it.
double SyncStep::under_way(const double* least, std::optional<Operation> operation) const {
  std::vector<std::pair<double, double>> spans;
  for (const auto& collective : collectives_) {
    const double duration = *least++;
    if (!operation || collective->operation == *operation) {
      const double end = collective->end->seconds_since(began_);
      spans.emplace_back(std::max(collective->start.seconds_since(began_), end - duration), end);
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

SyncTimes SyncStep::times(TreeReduce& control) {
  SyncTimes times{};
  const auto of = [&times](Operation operation) -> SyncCost& { return times.of[static_cast<size_t>(operation)]; };
  for (const auto& collective : collectives_) {
    of(collective->operation).bytes += collective->bytes;
    times.all.bytes += collective->bytes;
  }
  if (!arrived_) {
    return times;
  }
  if (!exchanged_) {
    exchange(control);
  }
  exchanged_->waitAndThrow();
  const auto* least = least_.const_data_ptr<double>();
  auto& last = of(meeting_->operation);
  last.straggler = std::max(0.0, meeting_->seconds() - least[0]);
  last.exposed = std::max(0.0, usable_->seconds_since(meeting_->start) - last.straggler);
  for (size_t index = 0; index < collectives_.size(); ++index) {
    const auto& collective = *collectives_[index];
    if (!collective.wait) {
      continue;
    }
    const double until = collective.wait->until.seconds_since(began_);
    const double from = collective.wait->from.seconds_since(began_);
    const double all_there = collective.end->seconds_since(began_) - least[index + 1];
    const double exposed = std::max(0.0, until - std::max(from, all_there));
    of(collective.operation).exposed += exposed;
    of(collective.operation).straggler += std::max(0.0, until - from - exposed);
    times.waited_in_forward += collective.wait->in_forward ? std::max(0.0, until - from) : 0.0;
  }
  for (size_t operation = 0; operation < kOperations; ++operation) {
    auto& cost = times.of[operation];
    cost.total = std::max(under_way(least + 1, static_cast<Operation>(operation)), cost.exposed);
    times.all.exposed += cost.exposed;
    times.all.straggler += cost.straggler;
  }
  times.all.total = std::max(under_way(least + 1, std::nullopt), times.all.exposed);
  return times;
}

}  // namespace vit

extern "C" {

void vit_measurement_free(vit::Measurement* measurement) {
  guarded([&] { delete measurement; });
}

// The times of a step that the device has come to the end of. Called some work after its end, it waits for nothing but,
// on a device other than the CPU, for the other ranks to call it too.
//
// straggler: own last gradient ready -> every rank's last gradient ready; and what was waited for other collectives
//            before every rank had begun them.
// exposed:   from then -> reduced gradients usable, and the arrival known; and what was waited for other collectives.
// total:     time in which any collective was under way that every rank had begun, and at least `exposed`.
//
// A rank that is late by D lengthens the others' straggler by D and nothing else. A slower network lengthens total, and
// exposed where no computation hides it, and not straggler: the arrival, slower too, is as slow on every rank.
vit::Status vit_measurement_times(const vit::Measurement* measurement, vit::SyncTimes* times) {
  return guarded([&] { *times = measurement->step->times(*measurement->control); });
}
}
