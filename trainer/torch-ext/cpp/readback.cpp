// Numbers on a device that the host reads later, waiting only when it needs them.
#include <algorithm>
#include <optional>

#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "error.hpp"
#include "tensors.hpp"

using vit::guarded;

namespace vit {

struct Readback {
  at::Tensor host;
  // Marks the end of the copy; none for numbers on the host.
  std::optional<c10::Event> copied;
};

}  // namespace vit

extern "C" {

// Starts copying `values`, in double precision, to pinned host memory.
vit::Status vit_readback_new(const at::Tensor* values, vit::Readback** out) {
  return guarded([&] {
    c10::NoGradGuard no_grad;
    const auto device = values->device();
    if (device.is_cpu()) {
      *out = new vit::Readback{values->clone(), std::nullopt};
      return;
    }
    auto host = at::empty(values->sizes(), values->options().device(at::kCPU).pinned_memory(true));
    host.copy_(*values, /*non_blocking=*/true);
    c10::Event copied(device.type());
    copied.record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
    *out = new vit::Readback{std::move(host), std::move(copied)};
  });
}

void vit_readback_free(vit::Readback* readback) {
  guarded([&] { delete readback; });
}

// Writes the `count` numbers once the copy has ended.
vit::Status vit_readback_wait(vit::Readback* readback, double* numbers, size_t count) {
  return guarded([&] {
    if (readback->copied) {
      readback->copied->synchronize();
    }
    TORCH_CHECK(static_cast<size_t>(readback->host.numel()) == count, "expected ", count, " numbers");
    std::copy_n(readback->host.const_data_ptr<double>(), count, numbers);
  });
}
}
