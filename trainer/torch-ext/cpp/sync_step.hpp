#pragma once
// Synchronization cost of a step, whatever its collectives.
//
// A collective ends only after its last rank has started it, so its duration on a rank is
// communication and waiting. The last rank did not wait: the least duration over the ranks is
// communication, and earlier collectives in the same queue. The ranks exchange their durations (a
// few numbers that no step waits for), and each subtracts its waiting. No clocks are compared.
//
// Just before the step's last gradient reduction, all ranks sum a *report*: a few numbers, complete
// when the last rank has its last gradient. On the CPU a separate group sums it. On another device
// it stays there, in the queue of the gradients, and the host does not wait.
#include <array>
#include <memory>
#include <optional>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/core/ivalue.h>

#include "device_event.hpp"
#include "process_group.hpp"
#include "tree_reduce.hpp"

namespace vit {

using Future = c10::ivalue::Future;
using FuturePtr = c10::intrusive_ptr<Future>;

enum class Operation : size_t { kAllReduce, kReduceScatter, kAllGather, kAllToAll };
constexpr size_t kOperations = 4;

// A collective from start to end on this rank. The end is recorded before the future completes that
// readers wait for, maybe by a thread of a process group.
struct Interval {
  // The time during which computation was stopped for it.
  struct Wait {
    DeviceEvent from;
    DeviceEvent until;
    bool in_forward;
  };

  Operation operation;
  uint64_t bytes;
  DeviceEvent start;
  std::optional<DeviceEvent> end{};
  // Set if it is waited for before the step's last gradient is ready.
  std::optional<Wait> wait{};

  static std::shared_ptr<Interval> begin(Operation operation, uint64_t bytes, at::Device device);

  double seconds() const;
};

// A future that completes like `future`, after recording the end of `interval`. On CUDA a callback
// runs on a stream that waits for the future's kernels; users of the result wait for this stream.
FuturePtr noting_end(const FuturePtr& future, at::Device device, std::shared_ptr<Interval> interval);

// Cost of the collectives of one operation, or of all, in a step.
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

// The record of one step.
class SyncStep {
 public:
  explicit SyncStep(at::Device device) : device_(device), began_(DeviceEvent::now(device)) {}

  // Adds a collective of the ranks that compare durations through `control`. Collectives of the
  // same ranks come in the same order on each.
  void add(std::shared_ptr<Interval> collective, const std::shared_ptr<TreeReduce>& control);

  // Sets the report to sum when this rank's last gradient is ready: a tensor on the device of the
  // gradients.
  void set_report(const at::Tensor& report) {
    TORCH_CHECK(report.device().type() == device_.type(), "the report is on ", report.device(), ", the gradients are on ", device_);
    report_ = report.detach();
  }

  // Sums the report over all ranks, when the last gradient is ready, through `group` or, if null,
  // through `control`. `reduction` is the operation that sums gradients.
  void arrive(Operation reduction, const Group* group, const std::shared_ptr<TreeReduce>& control);

  // The backward pass reached its last gradient, with or without other ranks.
  void set_reduced() { is_reduced_ = true; }

  // Call it right after the backward pass. Returns the sums of the report. On the CPU the ranks
  // compare their durations from now on, in the background.
  at::Tensor finish();

  // See vit_measurement_times.
  SyncTimes times();

 private:
  // Collectives of ranks that compare durations with each other.
  struct ComparedGroup {
    std::shared_ptr<TreeReduce> control;
    std::vector<std::shared_ptr<Interval>> collectives;
    // Their durations; the least over the ranks once `exchanged`.
    at::Tensor least{};
    FuturePtr exchanged{};
  };

  void exchange();
  double active_seconds(std::optional<Operation> operation) const;

  at::Device device_;
  DeviceEvent began_;
  std::vector<ComparedGroup> compared_;
  at::Tensor report_;
  bool is_reduced_ = false;
  FuturePtr arrived_;
  // From this rank's last gradient to every rank's.
  std::shared_ptr<Interval> meeting_;
  std::optional<DeviceEvent> usable_;
};

// Records the collectives of the running step.
class SyncRecorder {
 public:
  // Reports are summed by `reports`, which has all ranks, or without it by `control`.
  SyncRecorder(std::optional<Group> reports, const Group& control)
      : reports_(std::move(reports)), all_(comparing(control)) {}

  void begin(at::Device device) { step_ = std::make_shared<SyncStep>(device); }

  // The running step; null outside one.
  SyncStep* step() const { return step_.get(); }

  // Whether there are other ranks.
  bool has_peers() const { return trees_.front().first->getSize() > 1; }

  // Ends the running step.
  std::shared_ptr<SyncStep> take();

  // Sums the report when the last gradient of the running step is ready.
  void arrive(Operation reduction) { step_->arrive(reduction, reports_ ? &*reports_ : nullptr, all_); }

  // Compares the durations of the ranks of `control`.
  std::shared_ptr<TreeReduce> comparing(const Group& control);

 private:
  std::optional<Group> reports_;
  // One per group of ranks that compare durations; nothing else uses these groups meanwhile.
  std::vector<std::pair<c10::intrusive_ptr<c10d::ProcessGroup>, std::shared_ptr<TreeReduce>>> trees_;
  std::shared_ptr<TreeReduce> all_;
  std::shared_ptr<SyncStep> step_;
};

// The object behind a Rust handle.
struct RecorderHandle {
  std::shared_ptr<SyncRecorder> recorder;
};

// The object behind a Rust handle.
struct Measurement {
  std::shared_ptr<SyncStep> step;
};

}  // namespace vit
