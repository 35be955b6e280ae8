// Operators on a simulated device run the CPU kernel on the same memory after CUDA's checks. They
// are registered like those of libtorch_cuda, so the program under test is unchanged.
//
// Entries are only for operators that wait (`waits_for_device`) or mix devices (`may_mix`).
#include <atomic>
#include <csignal>
#include <cstring>
#include <fstream>
#include <limits>
#include <set>
#include <thread>
#include <unordered_map>

#include <ATen/ATen.h>
#include <torch/library.h>

#include "device.hpp"
#include "memory.hpp"
#include "settings.hpp"

namespace sim {
namespace {

// Operators that accept indices on the host.
bool may_mix(const std::string& name) { return name.rfind("aten::index", 0) == 0 || name.rfind("aten::_index", 0) == 0; }

// Operators for whose result the host waits.
bool waits_for_device(const std::string& name) {
  static const std::set<std::string> names{"aten::_local_scalar_dense", "aten::nonzero", "aten::equal", "aten::masked_select",
                                           "aten::_unique2", "aten::repeat_interleave.Tensor", "aten::bincount"};
  return names.count(name) > 0;
}

// Operators that only create views, or change a tensor's memory.
bool leaves_memory_alone(const c10::FunctionSchema& schema) {
  static const std::set<std::string> names{"aten::resize_", "aten::set_", "aten::record_stream"};
  if (names.count(schema.name()) > 0) {
    return true;
  }
  const auto& returns = schema.returns();
  return !returns.empty() && std::all_of(returns.begin(), returns.end(), [](const c10::Argument& value) {
    return value.alias_info() != nullptr && !value.alias_info()->isWrite();
  });
}

bool is_written(const c10::Argument& argument) { return argument.alias_info() != nullptr && argument.alias_info()->isWrite(); }

at::Tensor tensor_over(c10::Storage storage, const at::Tensor& like, c10::DispatchKey key) {
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(key), like.dtype());
  auto* impl = tensor.unsafeGetTensorImpl();
  impl->set_storage_offset(like.storage_offset());
  impl->set_sizes_and_strides(like.sizes(), like.strides());
  return tensor;
}

template <typename Kept>
c10::DataPtr data_that_keeps(void* memory, Kept kept, c10::Device device) {
  return {memory, new Kept(std::move(kept)), [](void* context) { delete static_cast<Kept*>(context); }, device};
}

// Host views of the device tensors of one call, and back.
class Call {
 public:
  explicit Call(std::string name) : name_(std::move(name)) {}

  at::Tensor in(const at::Tensor& tensor) {
    if (!tensor.defined() || !tensor.is_cuda()) {
      has_host_tensor_ |= tensor.defined() && tensor.is_cpu() && tensor.dim() > 0;
      return tensor;
    }
    const auto index = tensor.device().index();
    TORCH_CHECK(index_ < 0 || index == index_, name_,
                ": expected all tensors to be on the same device, but found at least two devices, cuda:", int(index_), " and cuda:",
                int(index));
    index_ = index;
    const auto& storage = tensor.storage();
    TORCH_CHECK(storage.nbytes() == 0 || storage.device().index() == index, "CUDA error: an illegal memory access was encountered: ",
                name_, " on cuda:", int(index), " finds a tensor in memory of cuda:", int(storage.device().index()));
    const auto [found, is_new] = storages_.try_emplace(storage.unsafeGetStorageImpl());
    if (is_new) {
      auto data = data_that_keeps(storage.mutable_data(), storage, c10::Device(c10::kCPU));
      found->second = {c10::Storage(c10::Storage::use_byte_size_t(), storage.nbytes(), std::move(data), c10::GetAllocator(c10::kCPU), true),
                       storage};
    }
    auto alias = tensor_over(found->second.first, tensor, c10::DispatchKey::CPU);
    if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
      alias.unsafeGetTensorImpl()->set_wrapped_number(true);
    }
    if (tensor.is_conj()) {
      alias._set_conj(true);
    }
    tensors_.emplace_back(alias, tensor);
    return alias;
  }

  // Applies resizing by a kernel to the device tensors.
  void settle() {
    for (auto& [alias, tensor] : tensors_) {
      if (alias.storage().data() != tensor.storage().data()) {
        auto* storage = tensor.storage().unsafeGetStorageImpl();
        storage->set_data_ptr_noswap(data_of(alias.storage()));
        storage->set_nbytes(alias.storage().nbytes());
      }
      auto* impl = tensor.unsafeGetTensorImpl();
      impl->set_storage_offset(alias.storage_offset());
      impl->set_sizes_and_strides(alias.sizes(), alias.strides());
    }
  }

  // A result, and whether it is in new memory.
  std::pair<at::Tensor, bool> out(const at::Tensor& tensor) {
    if (!tensor.defined() || !tensor.is_cpu() || index_ < 0) {
      return {tensor, false};
    }
    for (const auto& [alias, original] : tensors_) {
      if (alias.unsafeGetTensorImpl() == tensor.unsafeGetTensorImpl()) {
        return {original, false};
      }
    }
    for (const auto& [impl, pair] : storages_) {
      if (pair.first.unsafeGetStorageImpl() == tensor.storage().unsafeGetStorageImpl()) {
        return {tensor_over(pair.second, tensor, c10::DispatchKey::CUDA), false};
      }
    }
    c10::Storage storage(c10::Storage::use_byte_size_t(), tensor.storage().nbytes(), data_of(tensor.storage()), &device_allocator(), true);
    return {tensor_over(storage, tensor, c10::DispatchKey::CUDA), true};
  }

  // The device that it runs on; negative without device tensors.
  c10::DeviceIndex device() const { return index_; }
  bool mixes() const { return has_host_tensor_ && index_ >= 0; }

 private:
  c10::DataPtr data_of(const c10::Storage& storage) const {
    return data_that_keeps(storage.mutable_data(), storage, c10::Device(c10::kCUDA, index_));
  }

  std::string name_;
  c10::DeviceIndex index_ = -1;
  bool has_host_tensor_ = false;
  std::vector<std::pair<at::Tensor, at::Tensor>> tensors_;
  std::unordered_map<c10::StorageImpl*, std::pair<c10::Storage, c10::Storage>> storages_;
};

// Whether an operator only changes given tensors, without resizing.
bool works_in_place(const c10::FunctionSchema& schema) {
  const auto& returns = schema.returns();
  return schema.name().back() == '_' && schema.name() != "aten::resize_" &&
         std::all_of(returns.begin(), returns.end(), [](const c10::Argument& value) {
           return value.alias_info() != nullptr && value.alias_info()->isWrite();
         });
}

// An operator's use of a tensor.
struct Use {
  at::Tensor tensor;
  bool writes;
};

void on_host(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  const auto& name = schema.name();
  require_device(name.c_str(), /*is_operator=*/true);
  const auto overloaded = schema.overload_name().empty() ? name : name + "." + schema.overload_name();
  Call call(name);
  std::vector<Use> uses;
  const auto begin = stack->size() - schema.arguments().size();
  torch::jit::Stack given(stack->begin() + begin, stack->end());
  for (size_t index = 0; index < schema.arguments().size(); ++index) {
    auto& value = (*stack)[begin + index];
    const bool writes = is_written(schema.arguments()[index]);
    const auto take = [&](const at::Tensor& tensor) {
      if (tensor.defined() && tensor.is_cuda()) {
        uses.push_back({tensor, writes});
      }
      return call.in(tensor);
    };
    if (value.isTensor()) {
      value = take(value.toTensor());
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const auto& tensor : value.toTensorVector()) {
        list.push_back(take(tensor));
      }
      value = list;
    } else if (value.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> list;
      for (const auto& tensor : value.toOptionalTensorVector()) {
        list.push_back(tensor ? std::optional<at::Tensor>(take(*tensor)) : std::nullopt);
      }
      value = list;
    } else if (value.isDevice() && value.toDevice().is_cuda()) {
      value = c10::Device(c10::kCPU);
    }
  }
  TORCH_CHECK(!call.mixes() || may_mix(name), name,
              ": expected all tensors to be on the same device, but found at least two devices, cpu and cuda");
  const auto device = call.device() < 0 ? current_device() : call.device();
  const auto stream = current_stream(device);
  const bool uses_memory = !leaves_memory_alone(schema);
  WorkItem item{};
  if (uses_memory) {
    if (waits_for_device(overloaded) || waits_for_device(name)) {
      require_may_wait();
      host_waits(record_event(stream));
    }
    item = launch(stream);
    for (const auto& use : uses) {
      access(stream, item, use.tensor, use.writes, name);
    }
    if (works_in_place(schema) && !pending(stream).empty()) {
      torch::jit::Stack later(stack->begin() + begin, stack->end());
      // It returns the tensors that it writes.
      torch::jit::Stack results;
      for (size_t index = 0; index < schema.arguments().size(); ++index) {
        if (is_written(schema.arguments()[index]) && results.size() < schema.returns().size()) {
          results.push_back(given[index]);
        }
      }
      torch::jit::drop(*stack, schema.arguments().size());
      stack->insert(stack->end(), results.begin(), results.end());
      run_late(stream, [op, device, later = std::move(later), keep = std::move(given)]() mutable {
        at::NoGradGuard no_grad;
        const OnDeviceMemory memory(device);
        op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &later);
      });
      return;
    }
    drain(stream);
  }
  {
    const OnDeviceMemory memory(device);
    op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
  }
  call.settle();
  const auto result = [&](const at::Tensor& tensor) {
    const auto [found, is_new] = call.out(tensor);
    if (is_new && uses_memory) {
      access(stream, item, found, /*writes=*/true, name);
    }
    return found;
  };
  for (size_t index = stack->size() - schema.returns().size(); index < stack->size(); ++index) {
    auto& value = (*stack)[index];
    if (value.isTensor()) {
      value = result(value.toTensor());
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const auto& tensor : value.toTensorVector()) {
        list.push_back(result(tensor));
      }
      value = list;
    }
  }
}

c10::DeviceIndex place(std::optional<at::Device> device) {
  return device && device->has_index() ? device->index() : current_device();
}

at::Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                         std::optional<at::Device> device, std::optional<bool>) {
  const OnDevice on(place(device));
  return at::detail::empty_strided_generic(size, stride, &device_allocator(), c10::DispatchKeySet(c10::DispatchKey::CUDA),
                                           c10::dtype_or_default(dtype));
}

at::Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>, std::optional<at::Device> device,
                 std::optional<bool>, std::optional<at::MemoryFormat> format) {
  const OnDevice on(place(device));
  return at::detail::empty_generic(size, &device_allocator(), c10::DispatchKeySet(c10::DispatchKey::CUDA), c10::dtype_or_default(dtype),
                                   format);
}

// A copy within a device is an operator. Between host and device it blocks unless the host memory
// is pinned. Then it ends later, and until then its output must not be read nor its input written.
at::Tensor& copy(at::Tensor& to, const at::Tensor& from, bool non_blocking) {
  require_device("aten::copy_", /*is_operator=*/true);
  TORCH_CHECK(!to.is_cuda() || !from.is_cuda() || to.device() == from.device(), "a copy from cuda:", int(from.device().index()),
              " to cuda:", int(to.device().index()), ": ranks have one GPU each");
  const auto stream = current_stream((to.is_cuda() ? to : from).device().index());
  const auto target = host_view(to), source = host_view(from);
  const auto item = launch(stream);
  for (const auto& [tensor, writes] : {std::pair{to, true}, std::pair{from, false}}) {
    if (tensor.is_cuda()) {
      access(stream, item, tensor, writes, "aten::copy_");
    }
  }
  const auto& host = to.is_cuda() ? from : to;
  const bool is_within_device = to.is_cuda() == from.is_cuda();
  const bool is_late = non_blocking && !is_within_device && is_pinned(host.storage().data());
  if (is_within_device && !pending(stream).empty()) {
    run_late(stream, [target, source, keep = std::pair{to, from}] {
      at::NoGradGuard no_grad;
      target.copy_(source);
    });
  } else if (is_within_device) {
    target.copy_(source);
  } else if (!is_late) {
    // Unpinned memory is copied before the call returns, which reveals nothing about the stream.
    if (!non_blocking) {
      require_may_wait();
    }
    if (!non_blocking || to.is_cpu()) {
      host_waits(record_event(stream));
    }
    drain(stream);
    target.copy_(source);
  } else {
    if (to.is_cpu() && pending(stream).empty()) {
      poison(target);
    }
    const auto task = run_late(stream, [target, source, is_to_host = to.is_cpu(), keep = std::pair{to, from}] {
      at::NoGradGuard no_grad;
      poison(target);
      std::this_thread::sleep_for(next_delay());
      target.copy_(source);
    });
    keep_pinned(host.storage().data(), task);
  }
  return to;
}

int64_t math_attention(const at::Tensor&, const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&, double, bool,
                       std::optional<double>, bool) {
  return 0;
}

void record_stream(at::Tensor& tensor, at::Stream stream) {
  device_allocator().recordStream(tensor.storage().data_ptr(), stream);
}

std::atomic<bool> waits_are_forbidden{false};
std::atomic<uint64_t> operators{0};
std::atomic<bool> is_lost{false};

void lose_device(int) { is_lost = true; }

// A signal can lose the device at any time.
__attribute__((constructor)) void begin() { std::signal(SIGUSR2, lose_device); }

}  // namespace

at::Tensor host_view(const at::Tensor& tensor) {
  at::NoGradGuard no_grad;
  Call call("a copy or collective");
  return call.in(tensor);
}

void require_device(const char* who, bool is_operator) {
  if (is_operator && settings().slowness.count() > 0) {
    std::this_thread::sleep_for(settings().slowness);
  }
  const auto& fault = settings().fault;
  if (is_operator && fault && ++operators >= fault->operation) {
    if (fault->failure == Failure::kHangs) {
      std::ofstream(settings().report_folder + "/hangs");
      std::this_thread::sleep_for(std::chrono::hours(24));
    }
    is_lost = true;
  }
  if (is_lost) {
    throw c10::AcceleratorError({__func__, __FILE__, __LINE__}, 214, std::string("CUDA error: uncorrectable ECC error encountered (in ") + who + ")");
  }
}

void access(StreamName stream, const WorkItem& item, const at::Tensor& tensor, bool writes, const std::string& who) {
  if (tensor.numel() == 0) {
    return;
  }
  int64_t last = 0;
  for (int64_t dim = 0; dim < tensor.dim(); ++dim) {
    last += (tensor.size(dim) - 1) * tensor.stride(dim);
  }
  access(stream, item, tensor.const_data_ptr(), static_cast<size_t>(last + 1) * tensor.element_size(), writes, who);
}

void poison(const at::Tensor& tensor) {
  at::NoGradGuard no_grad;
  if (tensor.is_floating_point()) {
    tensor.fill_(std::numeric_limits<double>::quiet_NaN());
  } else {
    tensor.fill_(tensor.scalar_type() == at::kBool ? 1 : 0x5A);
  }
}

void forbid_waits(bool forbidden) { waits_are_forbidden = forbidden; }

void require_may_wait() {
  TORCH_CHECK(!waits_are_forbidden, "called a synchronizing CUDA operation");
}

}  // namespace sim

TORCH_LIBRARY_IMPL(_, CUDA, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&sim::on_host>()); }

TORCH_LIBRARY_IMPL(aten, CUDA, m) {
  m.impl("empty.memory_format", &sim::empty);
  m.impl("empty_strided", &sim::empty_strided);
  m.impl("copy_", &sim::copy);
  m.impl("_fused_sdp_choice", &sim::math_attention);
  m.impl("record_stream", &sim::record_stream);
}
