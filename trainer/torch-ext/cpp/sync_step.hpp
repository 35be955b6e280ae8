#pragma once
// What synchronisation costs a step, whatever collectives it consists of.
//
// A collective ends no sooner than its last rank has begun it, so its duration on one rank is communication and wait.
// The rank that came last did not wait: the least duration over the ranks is what communication took, and what other
// collectives before it in the same queue took. Once their durations are known the ranks exchange them (a few numbers
// that no step waits for), and each takes from its own ones what was wait. No clocks are compared.
//
// Just before the step's last reduction of gradients starts the *arrival*: a sum of a few numbers over all ranks, which
// ends when the last rank has its last gradient. On the CPU a group of its own adds it up. On another device it stays
// there, in the queue of the gradients, and the host waits for nothing.
#include <array>
#include <memory>
#include <optional>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/core/ivalue.h>

#include "moment.hpp"
#include "process_group.hpp"
#include "tree_reduce.hpp"

namespace vit {

using Future = c10::ivalue::Future;
using FuturePtr = c10::intrusive_ptr<Future>;

enum class Operation : size_t { kAllReduce, kReduceScatter, kAllGather, kAllToAll };
constexpr size_t kOperations = 4;

// A collective from its start on this rank to its end. The end is noted before the future completes that the reader
// waits for, if need be by a process group's thread.
struct Interval {
  // From when to when the computation stood still for it.
  struct Wait {
    Moment from;
    Moment until;
    bool in_forward;
  };

  Operation operation;
  uint64_t bytes;
  Moment start;
  std::optional<Moment> end{};
  // Where it is waited for before the step's last gradient is ready.
  std::optional<Wait> wait{};

  static std::shared_ptr<Interval> begin(Operation operation, uint64_t bytes, at::Device device);

  double seconds() const;
};

// A future that completes like `future`, after the end of `interval` is noted. On CUDA a callback runs on a stream that
// waits for the future's kernels, and those that wait for the result wait for this stream.
FuturePtr noting_end(const FuturePtr& future, at::Device device, std::shared_ptr<Interval> interval);

// Cost of the collectives of one kind, or of all, in a step.
struct SyncCost {
  double total;
  double exposed;
  double straggler;
  uint64_t bytes;
  uint64_t collectives;
};

struct SyncTimes {
  SyncCost all;
  std::array<SyncCost, kOperations> of;
  double waited_in_forward;
};

// What is noted of one step.
class SyncStep {
 public:
  explicit SyncStep(at::Device device) : device_(device), began_(Moment::now(device)) {}

  // Counts a collective of the ranks that compare their durations by `control`. Those of the same ranks come in the same
  // order on each of them.
  void add(std::shared_ptr<Interval> collective, const std::shared_ptr<TreeReduce>& control);

  // Sets what is added up when this rank's last gradient is ready: a tensor on the device of the gradients, whose group adds
  // it up there.
  void set_arrival(const at::Tensor& arrival) {
    TORCH_CHECK(arrival.device().type() == device_.type(), "the arrival is on ", arrival.device(), ", the gradients are on ", device_);
    arrival_ = arrival.detach();
  }

  // The last gradient is ready, and `reduction` is what sums gradients up. All ranks add up the arrival: `group`, or where
  // there is none `control`.
  void arrive(Operation reduction, const Group* group, const std::shared_ptr<TreeReduce>& control);

  // The backward pass came to its last gradient, with or without other ranks.
  void set_reduced() { is_reduced_ = true; }

  // Call it right after the backward pass. On the CPU the ranks compare their durations from now on, beside what follows.
  // Gives the sums of the arrival.
  at::Tensor finish();

  // See vit_measurement_times.
  SyncTimes times();

 private:
  // Collectives of ranks that compare their durations with each other.
  struct Compared {
    std::shared_ptr<TreeReduce> control;
    std::vector<std::shared_ptr<Interval>> collectives;
    // Their durations, the least over the ranks once `exchanged`.
    at::Tensor least{};
    FuturePtr exchanged{};
  };

  void exchange();
  double under_way(std::optional<Operation> operation) const;

  at::Device device_;
  Moment began_;
  std::vector<Compared> compared_;
  at::Tensor arrival_;
  bool is_reduced_ = false;
  FuturePtr arrived_;
  // From the own last gradient to every rank's.
  std::shared_ptr<Interval> meeting_;
  std::optional<Moment> usable_;
};

// Where the collectives of the running step are noted, whatever starts them.
class SyncRecorder {
 public:
  // Arrivals are added up by `arrivals`, which is of all ranks, or where there is none by `control`.
  SyncRecorder(std::optional<Group> arrivals, const Group& control)
      : arrivals_(std::move(arrivals)), all_(comparing(control)) {}

  void begin(at::Device device) { step_ = std::make_shared<SyncStep>(device); }

  // The running step; null outside one.
  SyncStep* step() const { return step_.get(); }

  // Whether there are other ranks.
  bool has_peers() const { return trees_.front().first->getSize() > 1; }

  // Ends the running step.
  std::shared_ptr<SyncStep> take();

  // The last gradient of the running step is ready, and `reduction` is what sums gradients up.
  void arrive(Operation reduction) { step_->arrive(reduction, arrivals_ ? &*arrivals_ : nullptr, all_); }

  // What compares the durations of the ranks of `control`.
  std::shared_ptr<TreeReduce> comparing(const Group& control);

 private:
  std::optional<Group> arrivals_;
  // For each group of ranks that compare durations; nothing else uses these groups meanwhile.
  std::vector<std::pair<c10::intrusive_ptr<c10d::ProcessGroup>, std::shared_ptr<TreeReduce>>> trees_;
  std::shared_ptr<TreeReduce> all_;
  std::shared_ptr<SyncStep> step_;
};

// What a Rust handle points at.
struct RecorderHandle {
  std::shared_ptr<SyncRecorder> recorder;
};

// What a Rust handle points at.
struct Measurement {
  std::shared_ptr<SyncStep> step;
};

}  // namespace vit
