// Data parallelism with sharded state: the Zero Redundancy Optimizer (ZeRO, arXiv 1910.02054),
// whose third stage is PyTorch's fully sharded data parallelism (FSDP, arXiv 2304.11277).
//
// The model is a sequence of units (its blocks, and the parts before and after them). Parameters of
// one kind in a unit share a flat tensor, padded so that every rank has an equal shard. A rank
// keeps weights in 32 bits, optimizer state and gradients for its shard only:
//
// - a unit's gradients are summed right after its backward pass, and each rank keeps its shard of
//   the mean: in stage 1 after a step's last micro-batch, in stages 2 and 3 after each;
// - in stages 1 and 2 the ranks gather all weights after the optimizer step, in the background; the
//   next forward pass waits for each unit;
// - in stage 3 weights exist only while a unit is computed. When one starts, the next is gathered.
//
// With several groups of ranks that each shard everything (hybrid sharding), ranks with the same
// shard average its gradient over the groups once a step.
//
// Parameters stay the same tensors. In stage 3 the storage of their flat tensor is freed and
// allocated again, so the backward pass finds the weights that the forward pass saved.
#include <algorithm>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include <c10/core/DeviceGuard.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/autograd/variable.h>

#include "error.hpp"
#include "sync_step.hpp"
#include "tensors.hpp"

using vit::guarded;

namespace {

using vit::FuturePtr;
using vit::Interval;
using vit::Operation;
using vit::SyncRecorder;
using vit::TreeReduce;

// Units whose gradients may be in transit at once: their memory is freed on completion.
constexpr size_t kUnitsReducing = 2;

// A running collective.
struct PendingCollective {
  FuturePtr future;
  std::shared_ptr<Interval> interval;

  void wait(at::Device device, bool in_forward) {
    auto from = vit::DeviceEvent::now(device);
    future->waitAndThrow();
    interval->wait.emplace(Interval::Wait{std::move(from), vit::DeviceEvent::now(device), in_forward});
    future.reset();
  }
};

// The parameters of one kind in a unit.
struct Flat {
  std::vector<at::Tensor> parameters;
  // Start of each in `full`.
  std::vector<int64_t> offsets;
  // All values, in the kind of the parameters, which are views of it.
  at::Tensor full;
  // This rank's shard, in 32 bits or in the kind of the parameters, on the device or in host
  // memory. A view of `full` if it has their kind and they stay in memory.
  at::Tensor shard;
  // This rank's shard of the mean gradient, in 32 bits.
  at::Tensor gradient;
  bool has_gradient = false;
  PendingCollective reduction;
  PendingCollective average;
  PendingCollective gather;
  // This rank's input to the running gather.
  at::Tensor sent;

  std::vector<at::Tensor> views_of(const at::Tensor& flat) const {
    std::vector<at::Tensor> views;
    for (size_t index = 0; index < parameters.size(); ++index) {
      views.push_back(flat.narrow(0, offsets[index], parameters[index].numel()).view(parameters[index].sizes()));
    }
    return views;
  }

  void free_storage() const {
    auto* storage = full.storage().unsafeGetStorageImpl();
    storage->set_data_ptr_noswap(at::DataPtr(nullptr, storage->device()));
    storage->set_nbytes(size_t{0});
  }

  void allocate_storage() const {
    auto* storage = full.storage().unsafeGetStorageImpl();
    const size_t bytes = full.numel() * full.element_size();
    // The allocator takes memory of the thread's current device.
    const c10::DeviceGuard on(full.device());
    storage->set_data_ptr_noswap(storage->allocator()->allocate(bytes));
    storage->set_nbytes(bytes);
  }
};

struct Unit {
  enum class Weights { kShard, kGathering, kWhole };

  std::vector<Flat> flats;
  Weights weights = Weights::kWhole;
  size_t parameters = 0;
  // Parameters without a gradient yet in the running backward pass.
  size_t missing = 0;
};

}  // namespace

namespace vit {

class Sharded : public std::enable_shared_from_this<Sharded> {
 public:
  // Ranks that compare durations through `control`.
  struct Ranks {
    Group group;
    std::shared_ptr<TreeReduce> control;
  };

  Sharded(Ranks ranks, std::optional<Ranks> replicas, std::shared_ptr<SyncRecorder> recorder, int stage, bool reshards,
          bool in_bf16, bool reads_first)
      : group_(std::move(ranks.group)),
        control_(std::move(ranks.control)),
        replicas_(std::move(replicas)),
        recorder_(std::move(recorder)),
        stage_(stage),
        reshards_(reshards),
        in_bf16_(in_bf16),
        first_read_(reads_first ? 0 : 1) {
    TORCH_CHECK(group_.group->getSize() > 1, "sharding needs more than one rank");
  }

  ~Sharded() {
    for (const auto& [accumulator, key] : hooks_) {
      accumulator->del_post_hook(key);
    }
  }

  void add(size_t unit, Flat flat) {
    device_ = flat.full.device();
    units_.resize(std::max(units_.size(), unit + 1));
    for (const auto& parameter : flat.parameters) {
      auto accumulator = torch::autograd::impl::grad_accumulator(parameter);
      const auto key = accumulator->add_post_hook(std::make_unique<torch::autograd::utils::LambdaPostHook>(
          [this, unit](const torch::autograd::variable_list& outputs, const torch::autograd::variable_list&) {
            gradient_ready(unit);
            return outputs;
          }));
      hooks_.emplace_back(std::move(accumulator), key);
    }
    units_[unit].parameters += flat.parameters.size();
    units_[unit].missing = units_[unit].parameters;
    if (stage_ == 3) {
      flat.free_storage();
      units_[unit].weights = Unit::Weights::kShard;
    }
    units_[unit].flats.push_back(std::move(flat));
  }

  void begin() {
    recorder_->begin(device_);
    is_last_pass_ = false;
    units_reduced_ = 0;
    for (auto& unit : units_) {
      for (auto& flat : unit.flats) {
        flat.has_gradient = false;
      }
    }
  }

  void prepare(const at::Tensor& report) {
    TORCH_CHECK(recorder_->step() != nullptr, "the step was not begun");
    recorder_->step()->set_report(report);
    is_last_pass_ = true;
    units_reduced_ = 0;
  }

  std::pair<at::Tensor, Measurement> finish() {
    TORCH_CHECK(is_last_pass_, "the step was not prepared");
    is_last_pass_ = false;
    while (!reducing_.empty()) {
      for (auto& flat : units_[reducing_.front().unit].flats) {
        flat.reduction.future->waitAndThrow();
        flat.reduction.future.reset();
      }
      finish_reducing();
    }
    for (auto& unit : units_) {
      for (auto& flat : unit.flats) {
        if (flat.average.future) {
          flat.average.future->waitAndThrow();
          flat.average.future.reset();
        }
      }
    }
    const auto step = recorder_->take();
    auto sums = step->finish();
    return {std::move(sums), Measurement{step}};
  }

  void settle() {
    for (size_t unit = 0; unit < units_.size(); ++unit) {
      await(unit, /*in_forward=*/false);
    }
  }

  void publish() {
    for (size_t unit = 0; unit < units_.size(); ++unit) {
      await(unit, /*in_forward=*/false);
      units_[unit].weights = Unit::Weights::kShard;
      if (stage_ == 3) {
        free_storage(unit);
      } else {
        gather(unit);
      }
    }
  }

  void enter(size_t unit) {
    gather(unit);
    if (unit + 1 < units_.size()) {
      gather(unit + 1);
    }
    await(unit, /*in_forward=*/true);
  }

  void leave(size_t unit, const at::Tensor& output) {
    if (stage_ < 3 || !reshards_) {
      return;
    }
    // Backward starts with the last unit, and may need no weights of the first.
    if (!output.requires_grad()) {
      free(unit);
    } else if (unit + 1 < units_.size()) {
      free(unit);
      if (unit >= first_read_) {
        before_backward(output, [unit](Sharded& sharded) {
          sharded.gather(unit);
          if (unit > sharded.first_read_) {
            sharded.gather(unit - 1);
          }
          sharded.await(unit, /*in_forward=*/false);
        });
      }
    } else if (unit > first_read_) {
      before_backward(output, [unit](Sharded& sharded) { sharded.gather(unit - 1); });
    }
  }

 private:
  // Runs `prepare` when the backward pass reaches `output`. The graph may outlive this object.
  template <typename Prepare>
  void before_backward(const at::Tensor& output, Prepare prepare) {
    output.register_hook([weak = weak_from_this(), prepare](const at::Tensor& gradient) {
      const auto sharded = weak.lock();
      TORCH_CHECK(sharded, "the weights that the backward pass needs are gone");
      prepare(*sharded);
      return gradient;
    });
  }

  void gradient_ready(size_t index) {
    auto& unit = units_.at(index);
    if (--unit.missing > 0) {
      return;
    }
    unit.missing = unit.parameters;
    if (stage_ == 3) {
      free(index);
    }
    if (is_last_pass_ || stage_ > 1) {
      reduce(index);
    }
  }

  // Starts summing the gradients of a unit over the ranks.
  void reduce(size_t index) {
    c10::NoGradGuard no_grad;
    // One at a time per shard, or two micro-batches would be added to it at once.
    const auto is_same = [index](const Reducing& other) { return other.unit == index; };
    while (reducing_.size() >= kUnitsReducing || std::any_of(reducing_.begin(), reducing_.end(), is_same)) {
      for (auto& flat : units_[reducing_.front().unit].flats) {
        flat.reduction.wait(device_, /*in_forward=*/false);
      }
      finish_reducing();
    }
    std::vector<at::Tensor> buffers;
    for (auto& flat : units_[index].flats) {
      buffers.push_back(packed_gradients(flat));
    }
    ++units_reduced_;
    if (is_last_pass_ && units_reduced_ == units_.size()) {
      recorder_->step()->set_reduced();
      recorder_->arrive(Operation::kReduceScatter);
    }
    for (size_t flat = 0; flat < buffers.size(); ++flat) {
      reduce(units_[index].flats[flat], std::move(buffers[flat]));
    }
    reducing_.push_back({index, is_last_pass_});
  }

  // Completes the oldest running reduction; averages whole shards over the groups.
  void finish_reducing() {
    const auto [unit, is_whole] = reducing_.front();
    reducing_.pop_front();
    if (!replicas_ || !is_whole) {
      return;
    }
    c10::NoGradGuard no_grad;
    const auto& group = replicas_->group;
    for (auto& flat : units_[unit].flats) {
      flat.average.interval = Interval::begin(Operation::kAllReduce, flat.gradient.nbytes(), device_);
      recorder_->step()->add(flat.average.interval, replicas_->control);
      c10d::AllreduceOptions options;
      options.reduceOp = group.averages ? c10d::ReduceOp::AVG : c10d::ReduceOp::SUM;
      if (!group.averages) {
        flat.gradient.div_(group.group->getSize());
      }
      std::vector<at::Tensor> tensors{flat.gradient};
      flat.average.future = vit::noting_end(group.group->allreduce(tensors, options)->getFuture(), device_, flat.average.interval);
    }
  }

  // Moves the gradients of a flat tensor's parameters into its layout, with any values as padding.
  // Divides them by the number of ranks if the group does not.
  at::Tensor packed_gradients(const Flat& flat) const {
    const auto kind = in_bf16_ ? at::kBFloat16 : flat.full.scalar_type();
    auto buffer = at::empty_like(flat.full, flat.full.options().dtype(kind));
    std::vector<at::Tensor> gradients;
    for (const auto& parameter : flat.parameters) {
      TORCH_CHECK(parameter.grad().defined(), "a parameter has no gradient");
      gradients.push_back(parameter.grad());
      parameter.mutable_grad().reset();
    }
    at::_foreach_copy_(flat.views_of(buffer), gradients);
    return group_.averages ? buffer : buffer.div_(group_.group->getSize());
  }

  void reduce(Flat& flat, at::Tensor buffer) {
    flat.reduction.interval = Interval::begin(Operation::kReduceScatter, buffer.nbytes(), device_);
    recorder_->step()->add(flat.reduction.interval, control_);
    const int64_t shard = flat.gradient.numel();
    at::Tensor own;
    FuturePtr queued;
    if (group_.scatters) {
      c10d::ReduceScatterOptions options;
      options.reduceOp = group_.averages ? c10d::ReduceOp::AVG : c10d::ReduceOp::SUM;
      own = at::empty({shard}, buffer.options());
      queued = group_.group->_reduce_scatter_base(own, buffer, options)->getFuture();
    } else {
      c10d::AllreduceOptions options;
      options.reduceOp = group_.averages ? c10d::ReduceOp::AVG : c10d::ReduceOp::SUM;
      std::vector<at::Tensor> tensors{buffer};
      queued = group_.group->allreduce(tensors, options)->getFuture();
      own = buffer.narrow(0, group_.group->getRank() * shard, shard);
    }
    const bool is_first = !std::exchange(flat.has_gradient, true);
    const auto reduced = vit::noting_end(queued, device_, flat.reduction.interval);
    flat.reduction.future = reduced->then(
        [own = std::move(own), gradient = flat.gradient, is_first](vit::Future& done) -> c10::IValue {
          c10::NoGradGuard no_grad;
          TORCH_CHECK_WITH(DistBackendError, !done.hasError(), done.tryRetrieveErrorMessage());
          return is_first ? gradient.copy_(own) : gradient.add_(own);
        },
        c10::TensorType::get());
  }

  // Starts gathering the weights of a unit unless they are complete or being gathered.
  void gather(size_t index) {
    auto& unit = units_.at(index);
    if (unit.weights != Unit::Weights::kShard) {
      return;
    }
    c10::NoGradGuard no_grad;
    for (auto& flat : unit.flats) {
      if (stage_ == 3) {
        flat.allocate_storage();
      }
      flat.sent = flat.shard.to(flat.full.device(), flat.full.scalar_type());
      flat.gather.interval = Interval::begin(Operation::kAllGather, flat.full.nbytes(), device_);
      const auto queued = group_.group->_allgather_base(flat.full, flat.sent)->getFuture();
      flat.gather.future = vit::noting_end(queued, device_, flat.gather.interval);
    }
    unit.weights = Unit::Weights::kGathering;
  }

  // Waits for the running gather of a unit's weights.
  void await(size_t index, bool in_forward) {
    auto& unit = units_.at(index);
    if (unit.weights != Unit::Weights::kGathering) {
      return;
    }
    for (auto& flat : unit.flats) {
      flat.gather.wait(device_, in_forward);
      flat.sent.reset();
      if (auto* step = recorder_->step()) {
        step->add(flat.gather.interval, control_);
      }
    }
    unit.weights = Unit::Weights::kWhole;
  }

  // Frees the memory of a unit's weights.
  void free(size_t index) {
    await(index, /*in_forward=*/false);
    units_.at(index).weights = Unit::Weights::kShard;
    free_storage(index);
  }

  void free_storage(size_t index) {
    for (const auto& flat : units_.at(index).flats) {
      flat.free_storage();
    }
  }

  // A unit whose gradients are being reduced, and whether in the step's last backward pass.
  struct Reducing {
    size_t unit;
    bool is_whole;
  };

  Group group_;
  std::shared_ptr<TreeReduce> control_;
  // The ranks with the same shards in other groups, if any.
  std::optional<Ranks> replicas_;
  std::shared_ptr<SyncRecorder> recorder_;
  int stage_;
  bool reshards_;
  bool in_bf16_;
  // The first unit whose weights the backward pass needs.
  size_t first_read_;
  at::Device device_ = at::kCPU;
  std::vector<Unit> units_;
  std::vector<std::pair<std::shared_ptr<torch::autograd::Node>, uintptr_t>> hooks_;
  // State of the running step.
  bool is_last_pass_ = false;
  size_t units_reduced_ = 0;
  // In the order in which they started.
  std::deque<Reducing> reducing_;
};

// The object behind a Rust handle.
struct ShardedHandle {
  std::shared_ptr<Sharded> sharded;

  Sharded* operator->() const { return sharded.get(); }
};

}  // namespace vit

extern "C" {

// Shards among the ranks of `group`, which compare durations through `control`. `replicas` and
// `replicas_control` are the groups of ranks with the same shards; null if there are none. `reads_first`
// says if the backward pass needs the weights of the first unit.
vit::Status vit_sharded_new(vit::Group* group, vit::Group* control, vit::Group* replicas, vit::Group* replicas_control,
                            vit::RecorderHandle* recorder, int stage, bool reshards, bool in_bf16,
                            bool reads_first, vit::ShardedHandle** out) {
  return guarded([&] {
    const auto& notes = recorder->recorder;
    std::optional<vit::Sharded::Ranks> others;
    if (replicas != nullptr) {
      others = vit::Sharded::Ranks{*replicas, notes->comparing(*replicas_control)};
    }
    *out = new vit::ShardedHandle{std::make_shared<vit::Sharded>(
        vit::Sharded::Ranks{*group, notes->comparing(*control)}, std::move(others), notes, stage, reshards, in_bf16,
        reads_first)};
  });
}

void vit_sharded_free(vit::ShardedHandle* sharded) {
  guarded([&] { delete sharded; });
}

// Adds parameters of one kind to a unit, the same on every rank in the same order. They are views
// of `full` that start at `offsets`; `shard` is this rank's part of the weights, and `gradient`
// that of the gradients. Stage 3 frees the values of `full`.
vit::Status vit_sharded_add(vit::ShardedHandle* sharded, size_t unit, at::Tensor* const* parameters, const int64_t* offsets,
                            size_t count, at::Tensor* full, at::Tensor* shard, at::Tensor* gradient) {
  return guarded([&] {
    const auto ranks = full->numel() / shard->numel();
    TORCH_CHECK(full->numel() == ranks * shard->numel() && shard->sizes() == gradient->sizes(), "shards differ in size");
    Flat flat;
    flat.parameters = vit::tensor_list(parameters, count);
    flat.offsets.assign(offsets, offsets + count);
    flat.full = *full;
    flat.shard = *shard;
    flat.gradient = *gradient;
    (*sharded)->add(unit, std::move(flat));
  });
}

// Begins a step; its first gradients replace those of the previous step.
vit::Status vit_sharded_begin(vit::ShardedHandle* sharded) {
  return guarded([&] { (*sharded)->begin(); });
}

// Announces the step's last backward pass; `report` is summed over the ranks during it.
vit::Status vit_sharded_prepare(vit::ShardedHandle* sharded, at::Tensor* report) {
  return guarded([&] { (*sharded)->prepare(*report); });
}

// See vit_reducer_finish.
vit::Status vit_sharded_finish(vit::ShardedHandle* sharded, at::Tensor** sums, vit::Measurement** measurement) {
  return guarded([&] {
    auto [found, measured] = (*sharded)->finish();
    *sums = new at::Tensor(std::move(found));
    *measurement = new vit::Measurement(std::move(measured));
  });
}

// Waits for running gathers: the shards may be changed from now on.
vit::Status vit_sharded_settle(vit::ShardedHandle* sharded) {
  return guarded([&] { (*sharded)->settle(); });
}

// Uses the changed shards for the model from now on.
vit::Status vit_sharded_publish(vit::ShardedHandle* sharded) {
  return guarded([&] { (*sharded)->publish(); });
}

// Gathers the weights of a unit for the forward pass, in order of units.
vit::Status vit_sharded_enter(vit::ShardedHandle* sharded, size_t unit) {
  return guarded([&] { (*sharded)->enter(unit); });
}

// Releases the weights of a unit after the forward pass; `output` is its only result.
vit::Status vit_sharded_leave(vit::ShardedHandle* sharded, size_t unit, at::Tensor* output) {
  return guarded([&] { (*sharded)->leave(unit, *output); });
}
}
