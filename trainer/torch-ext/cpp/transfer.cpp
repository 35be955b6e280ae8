// Copies from the host to a device during its other work, with c10's generic streams and events,
// which need no CUDA headers.
#include <optional>

#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>

#include "device_index.hpp"
#include "error.hpp"

using vit::guarded;

namespace vit {

struct Transfer {
  // Stream and events of a device. On the CPU a copy has ended when the call returns.
  struct Lane {
    explicit Lane(c10::Device device)
        : guard(device.type()), stream(guard.getStreamFromGlobalPool(device)), copied(device.type()), used(device.type()) {}

    c10::Stream compute_stream() const { return guard.getStream(stream.device()); }

    c10::impl::VirtualGuardImpl guard;
    c10::Stream stream;
    c10::Event copied;
    c10::Event used;
  };

  Transfer(c10::Device place, int64_t bytes)
      : device(at::empty({bytes}, at::TensorOptions().dtype(at::kByte).device(place))),
        host(at::empty({bytes}, at::TensorOptions().dtype(at::kByte).pinned_memory(!place.is_cpu())).zero_()) {
    if (!place.is_cpu()) {
      lane.emplace(place);
      // The memory may come from operations that are still queued.
      lane->used.record(lane->compute_stream());
    }
  }

  // The device's memory must not be freed while it is written to.
  ~Transfer() {
    guarded([&] { wait(); });
  }

  void wait() const {
    if (lane) {
      lane->copied.synchronize();
    }
  }

  void send(int64_t bytes) {
    const auto from = host.narrow(0, 0, bytes), to = device.narrow(0, 0, bytes);
    if (!lane) {
      to.copy_(from);
      return;
    }
    lane->used.block(lane->stream);
    const c10::StreamGuard on(lane->stream);
    to.copy_(from, /*non_blocking=*/true);
    lane->copied.record(lane->stream);
  }

  // Allocated first: pinned memory uses its context.
  at::Tensor device;
  at::Tensor host;
  std::optional<Lane> lane;
};

}  // namespace vit

extern "C" {

// `index` is that of a CUDA device, or negative for the CPU.
vit::Status vit_transfer_new(int index, size_t bytes, vit::Transfer** out) {
  return guarded([&] {
    *out = new vit::Transfer(vit::device_of(index), static_cast<int64_t>(bytes));
  });
}

void vit_transfer_free(vit::Transfer* transfer) {
  guarded([&] { delete transfer; });
}

// Returns the host's memory, after its last copy has ended.
vit::Status vit_transfer_host(vit::Transfer* transfer, uint8_t** bytes) {
  return guarded([&] {
    transfer->wait();
    *bytes = transfer->host.mutable_data_ptr<uint8_t>();
  });
}

// Starts copying the first `bytes` bytes, after the device's operations on the last ones.
vit::Status vit_transfer_send(vit::Transfer* transfer, size_t bytes) {
  return guarded([&] { transfer->send(static_cast<int64_t>(bytes)); });
}

// Copies a host tensor to a device through pinned memory, without waiting; on the CPU returns the
// tensor itself. (tch's `pin_memory` names a device, and libtorch warns about it each time.)
vit::Status vit_sent(const at::Tensor* tensor, int index, at::Tensor** out) {
  return guarded([&] {
    const auto device = vit::device_of(index);
    *out = new at::Tensor(device.is_cpu() ? *tensor : tensor->pin_memory().to(device, /*non_blocking=*/true));
  });
}

// Returns the device's memory; operations queued from now on wait for the copy.
vit::Status vit_transfer_begin_use(vit::Transfer* transfer, at::Tensor** device) {
  return guarded([&] {
    if (transfer->lane) {
      transfer->lane->copied.block(transfer->lane->compute_stream());
    }
    *device = new at::Tensor(transfer->device);
  });
}

// Makes the next copy wait for the operations queued by now.
vit::Status vit_transfer_end_use(vit::Transfer* transfer) {
  return guarded([&] {
    if (transfer->lane) {
      transfer->lane->used.record(transfer->lane->compute_stream());
    }
  });
}
}
