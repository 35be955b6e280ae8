// Copies of many device tensors in host memory. Only two buffers are pinned: libtorch rounds each
// pinned block up to a power of two and keeps it until the process exits.
#include <array>
#include <cstring>
#include <optional>

#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "device_index.hpp"
#include "error.hpp"

using vit::guarded;

namespace vit {

class HostCopies {
 public:
  explicit HostCopies(c10::Device device) : device_(device) {}

  // Starts copying a tensor, in 32 bits; its values are complete after `finish`.
  at::Tensor add(const at::Tensor& tensor) {
    c10::NoGradGuard no_grad;
    if (tensor.device().is_cpu()) {
      return tensor.to(at::kCPU, at::kFloat, /*non_blocking=*/false, /*copy=*/true);
    }
    auto copy = at::empty(tensor.sizes(), at::TensorOptions().dtype(at::kFloat));
    const auto source = tensor.flatten();
    for (int64_t begin = 0; begin < source.numel(); begin += kNumbers) {
      const auto count = std::min(kNumbers, source.numel() - begin);
      auto& buffer = buffers_[next_++ % buffers_.size()];
      // Empties the buffer of an earlier part.
      flush(buffer);
      if (!buffer.pinned.defined()) {
        buffer.pinned = at::empty({kNumbers}, at::TensorOptions().dtype(at::kFloat).pinned_memory(true));
      }
      buffer.pinned.narrow(0, 0, count).copy_(source.narrow(0, begin, count).to(at::kFloat), /*non_blocking=*/true);
      buffer.copied.emplace(device_.type());
      buffer.copied->record(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
      buffer.target = copy.view({-1}).narrow(0, begin, count);
    }
    return copy;
  }

  void finish() {
    for (auto& buffer : buffers_) {
      flush(buffer);
    }
  }

 private:
  // 32 MiB: a copy of this size keeps the link busy while the host empties the other buffer.
  static constexpr int64_t kNumbers = int64_t{8} << 20;

  struct Buffer {
    at::Tensor pinned{};
    std::optional<c10::Event> copied{};
    // Destination of its values.
    at::Tensor target{};
  };

  static void flush(Buffer& buffer) {
    if (buffer.copied) {
      buffer.copied->synchronize();
      std::memcpy(buffer.target.mutable_data_ptr<float>(), buffer.pinned.const_data_ptr<float>(), buffer.target.nbytes());
      buffer.copied.reset();
      buffer.target.reset();
    }
  }

  c10::Device device_;
  std::array<Buffer, 2> buffers_;
  size_t next_ = 0;
};

}  // namespace vit

extern "C" {

// `index` is that of a CUDA device, or negative for the CPU.
vit::Status vit_host_copies_new(int index, vit::HostCopies** out) {
  return guarded([&] { *out = new vit::HostCopies(vit::device_of(index)); });
}

void vit_host_copies_free(vit::HostCopies* copies) {
  guarded([&] { delete copies; });
}

vit::Status vit_host_copies_add(vit::HostCopies* copies, const at::Tensor* tensor, at::Tensor** copy) {
  return guarded([&] { *copy = new at::Tensor(copies->add(*tensor)); });
}

vit::Status vit_host_copies_finish(vit::HostCopies* copies) {
  return guarded([&] { copies->finish(); });
}
}
