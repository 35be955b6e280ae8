// For tests only: process groups whose all-reduces and messages take longer, as over a slow
// network, or whose all-reduces are only queued, as over NCCL. They are in a separate archive,
// which other programs do not link.
#include <atomic>
#include <cstdlib>
#include <thread>

#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "error.hpp"
#include "process_group.hpp"

using vit::guarded;

namespace {

// A process has one FlightRecorder (torch/csrc/distributed/c10d/FlightRecorderDetail.hpp). It adds
// a group's first collective to a map without a lock: safe with one rank per process, but not with
// ranks as threads. Libraries read the environment later, so it is switched off before main.
__attribute__((constructor)) void switch_flight_recorder_off() { setenv("TORCH_FR_BUFFER_SIZE", "0", 1); }

using Future = c10::ivalue::Future;
using Milliseconds = std::chrono::milliseconds;

class DelayedWork : public c10d::Work {
 public:
  explicit DelayedWork(c10::intrusive_ptr<Future> future) : future_(std::move(future)) {}

  c10::intrusive_ptr<Future> getFuture() override { return future_; }

  bool wait(Milliseconds) override {
    future_->waitAndThrow();
    return true;
  }

 private:
  c10::intrusive_ptr<Future> future_;
};

class DelayedBackend : public c10d::Backend {
 public:
  DelayedBackend(c10::intrusive_ptr<c10d::Backend> inner, Milliseconds delay, Milliseconds gathers_delay,
                 Milliseconds exchanges_delay)
      : Backend(inner->getRank(), inner->getSize()),
        inner_(std::move(inner)),
        delay_(delay),
        gathers_delay_(gathers_delay),
        exchanges_delay_(exchanges_delay) {}

  const std::string getBackendName() const override { return "delayed"; }

  c10::intrusive_ptr<c10d::Work> broadcast(std::vector<at::Tensor>& tensors,
                                           const c10d::BroadcastOptions& options) override {
    return inner_->broadcast(tensors, options);
  }

  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>& tensors,
                                           const c10d::AllreduceOptions& options) override {
    return later(inner_->allreduce(tensors, options), tensors, delay_);
  }

  c10::intrusive_ptr<c10d::Work> _allgather_base(at::Tensor& output, at::Tensor& input,
                                                 const c10d::AllgatherOptions& options) override {
    return later(inner_->_allgather_base(output, input, options), {output}, gathers_delay_);
  }

  c10::intrusive_ptr<c10d::Work> alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& received,
                                               std::vector<int64_t>& sent,
                                               const c10d::AllToAllOptions& options) override {
    return later(inner_->alltoall_base(output, input, received, sent, options), {output}, exchanges_delay_);
  }

  c10::intrusive_ptr<c10d::Work> send(std::vector<at::Tensor>& tensors, int to, int tag) override {
    return inner_->send(tensors, to, tag);
  }

  c10::intrusive_ptr<c10d::Work> recv(std::vector<at::Tensor>& tensors, int from, int tag) override {
    return later(inner_->recv(tensors, from, tag), tensors, delay_);
  }

 private:
  // Work on these tensors that ends `delay` later.
  static c10::intrusive_ptr<c10d::Work> later(c10::intrusive_ptr<c10d::Work> work, std::vector<at::Tensor> tensors,
                                              Milliseconds delay) {
    auto done = c10::make_intrusive<Future>(c10::ListType::create(c10::TensorType::get()));
    std::thread([work, done, tensors, delay]() mutable {
      work->wait();
      // The group and the process may end once the work is marked as done.
      work.reset();
      std::this_thread::sleep_for(delay);
      done->markCompleted(c10::IValue(std::move(tensors)));
    }).detach();
    return c10::make_intrusive<DelayedWork>(done);
  }

  c10::intrusive_ptr<c10d::Backend> inner_;
  Milliseconds delay_;
  Milliseconds gathers_delay_;
  Milliseconds exchanges_delay_;
};

// Does not reduce: results are complete at once, like NCCL's when its kernels are queued.
class QueuedBackend : public c10d::Backend {
 public:
  explicit QueuedBackend(const c10d::Backend& inner) : Backend(inner.getRank(), inner.getSize()) {}

  const std::string getBackendName() const override { return "queued"; }

  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>& tensors,
                                           const c10d::AllreduceOptions&) override {
    auto done = c10::make_intrusive<Future>(c10::ListType::create(c10::TensorType::get()));
    done->markCompleted(c10::IValue(tensors));
    return c10::make_intrusive<DelayedWork>(done);
  }

  void abort() override { aborted = true; }

  std::atomic<bool> aborted{false};
};

void replace(vit::Group& group, const c10::intrusive_ptr<c10d::Backend>& backend) {
  auto outer = c10::make_intrusive<c10d::ProcessGroup>(backend->getRank(), backend->getSize());
  const auto type = c10d::ProcessGroup::BackendType::CUSTOM;
  outer->setBackend(c10::DeviceType::CPU, type, backend);
  outer->setDefaultBackend(type);
  group.group = outer;
}

}  // namespace

extern "C" {

// Delays the end of the group's all-reduces and messages, of its gathers, and of its all-to-alls.
vit::Status vit_group_delay(vit::Group* group, int64_t delay_ms, int64_t gathers_delay_ms, int64_t exchanges_delay_ms) {
  return guarded([&] {
    replace(*group, c10::make_intrusive<DelayedBackend>(group->group->getDefaultBackend(), Milliseconds(delay_ms),
                                                        Milliseconds(gathers_delay_ms),
                                                        Milliseconds(exchanges_delay_ms)));
  });
}

// Makes the group only queue its all-reduces.
vit::Status vit_group_queue(vit::Group* group) {
  return guarded([&] { replace(*group, c10::make_intrusive<QueuedBackend>(*group->group->getDefaultBackend())); });
}

// Whether a group that only queues was aborted.
vit::Status vit_group_aborted(vit::Group* group, bool* aborted) {
  return guarded([&] {
    const auto backend = group->group->getDefaultBackend();
    *aborted = dynamic_cast<QueuedBackend&>(*backend).aborted;
  });
}

// Adds 1 to a GPU tensor on another stream; the current stream waits for it only if `ordered`.
vit::Status vit_add_on_other_stream(at::Tensor* tensor, bool ordered) {
  return guarded([&] {
    const auto device = tensor->device();
    const c10::impl::VirtualGuardImpl guard(device.type());
    const auto current = guard.getStream(device), other = guard.getStreamFromGlobalPool(device);
    c10::Event before(device.type()), after(device.type());
    before.record(current);
    before.block(other);
    {
      const c10::StreamGuard on(other);
      tensor->add_(1);
    }
    after.record(other);
    if (ordered) {
      after.block(current);
    }
  });
}
}
