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

enum class Operation : size_t { kAllReduce, kReduceScatter, kAllGather };
constexpr size_t kOperations = 3;

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

  // Counts a collective.
  void add(std::shared_ptr<Interval> collective) { collectives_.push_back(std::move(collective)); }

  // Sets what is added up when this rank's last gradient is ready.
  void set_arrival(const at::Tensor& arrival) { arrival_ = arrival.detach(); }

  // The last gradient is ready, and `reduction` is what sums gradients up. The arrival is added up by `arrivals`, or
  // where there are none like the gradients.
  void arrive(Operation reduction, const Group& gradients, TreeReduce* arrivals);

  // The backward pass came to its last gradient, with or without other ranks.
  void set_reduced() { is_reduced_ = true; }

  // Call it right after the backward pass. On the CPU the ranks compare their durations from now on, beside what follows.
  // Gives the sums of the arrival.
  at::Tensor finish(TreeReduce& control);

  // See vit_measurement_times.
  SyncTimes times(TreeReduce& control);

 private:
  void exchange(TreeReduce& control);
  double under_way(const double* least, std::optional<Operation> operation) const;

  at::Device device_;
  Moment began_;
  std::vector<std::shared_ptr<Interval>> collectives_;
  at::Tensor arrival_;
  bool is_reduced_ = false;
  FuturePtr arrived_;
  // From the own last gradient to every rank's.
  std::shared_ptr<Interval> meeting_;
  std::optional<Moment> usable_;
  // Durations of the meeting and of each collective, the least over the ranks once `exchanged_`.
  at::Tensor least_;
  FuturePtr exchanged_;
};

// What a Rust handle points at.
struct Measurement {
  std::shared_ptr<SyncStep> step;
  std::shared_ptr<TreeReduce> control;
};

}  // namespace vit
