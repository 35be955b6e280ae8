// Bytes on their way from the host to a device, beside what the device computes: through c10's generic streams and
// events, which need no header of CUDA.
#include <optional>

#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>

#include "device_index.hpp"
#include "error.hpp"

using vit::guarded;

namespace vit {

struct Transfer {
  // What a device has that works on its own. On the CPU a copy has ended when the call returns.
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
      // The allocator may have taken the memory from operations that are still queued.
      lane->used.record(lane->compute_stream());
    }
  }

  // The device's memory must not go back to the allocator while it is written to.
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

  // First the device's, whose context pinned memory is then taken from.
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

// Gives the host's memory, once its last copy has ended.
vit::Status vit_transfer_host(vit::Transfer* transfer, uint8_t** bytes) {
  return guarded([&] {
    transfer->wait();
    *bytes = transfer->host.mutable_data_ptr<uint8_t>();
  });
}

// Begins to copy the first `bytes` bytes, once what the device does with the last ones is done.
vit::Status vit_transfer_send(vit::Transfer* transfer, size_t bytes) {
  return guarded([&] { transfer->send(static_cast<int64_t>(bytes)); });
}

// Copies a tensor of the host to a device by way of pinned memory, for which the host does not wait. On the CPU the tensor itself.
// (tch's `pin_memory` names a device, at which libtorch prints a warning each time.)
vit::Status vit_sent(const at::Tensor* tensor, int index, at::Tensor** out) {
  return guarded([&] {
    const auto device = vit::device_of(index);
    *out = new at::Tensor(device.is_cpu() ? *tensor : tensor->pin_memory().to(device, /*non_blocking=*/true));
  });
}

// Gives the device's memory; operations that are queued from now on wait for the copy.
vit::Status vit_transfer_begin_use(vit::Transfer* transfer, at::Tensor** device) {
  return guarded([&] {
    if (transfer->lane) {
      transfer->lane->copied.block(transfer->lane->compute_stream());
    }
    *device = new at::Tensor(transfer->device);
  });
}

// The next copy waits for the operations that are queued by now.
vit::Status vit_transfer_end_use(vit::Transfer* transfer) {
  return guarded([&] {
    if (transfer->lane) {
      transfer->lane->used.record(transfer->lane->compute_stream());
    }
  });
}
}
