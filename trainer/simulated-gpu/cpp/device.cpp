// CUDA devices, streams, events and memory for libtorch.
#include <cstring>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/DeviceAccelerator.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "device.hpp"
#include "memory.hpp"
#include "settings.hpp"

namespace sim {
namespace {

c10::Stream stream_named(StreamName name) { return c10::Stream(c10::Stream::UNSAFE, {c10::kCUDA, name.device}, name.id); }

c10::DeviceIndex index_of(c10::Device device) { return device.has_index() ? device.index() : current_device(); }

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return c10::kCUDA; }
  c10::Device exchangeDevice(c10::Device next) const override {
    const auto before = getDevice();
    setDevice(next);
    return before;
  }
  c10::Device getDevice() const override { return {c10::kCUDA, current_device()}; }
  void setDevice(c10::Device next) const override {
    TORCH_CHECK(next.index() >= 0 && next.index() < settings().devices, "CUDA error: invalid device ordinal ", int(next.index()));
    set_current_device(next.index());
  }
  void uncheckedSetDevice(c10::Device next) const noexcept override { set_current_device(next.index()); }
  c10::Stream getStream(c10::Device device) const override { return stream_named(current_stream(index_of(device))); }
  c10::Stream getDefaultStream(c10::Device device) const override { return c10::Stream(c10::Stream::DEFAULT, device); }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override {
    return stream_named(stream_of_pool(index_of(device), /*of_collectives=*/false));
  }
  c10::Stream getNewStream(c10::Device device, int) const override { return getStreamFromGlobalPool(device, false); }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    const auto before = getStream(stream.device());
    set_current_stream(name_of(stream));
    return before;
  }
  c10::DeviceIndex deviceCount() const noexcept override { return settings().devices; }

  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override { delete static_cast<StreamEvent*>(event); }
  void record(void** event, const c10::Stream& stream, c10::DeviceIndex, c10::EventFlag) const override {
    if (*event == nullptr) {
      *event = new StreamEvent;
    }
    *static_cast<StreamEvent*>(*event) = record_event(name_of(stream));
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event != nullptr) {
      follow(name_of(stream), *static_cast<StreamEvent*>(event));
    }
  }
  bool queryEvent(void* event) const override {
    const bool has_passed = event == nullptr || static_cast<StreamEvent*>(event)->has_passed();
    if (event != nullptr && has_passed) {
      host_waits(*static_cast<StreamEvent*>(event));
    }
    return has_passed;
  }
  bool queryStream(const c10::Stream& stream) const override { return pending(name_of(stream)).empty(); }
  void synchronizeStream(const c10::Stream& stream) const override {
    require_device("cudaStreamSynchronize", /*is_operator=*/false);
    require_may_wait();
    host_waits(record_event(name_of(stream)));
  }
  void synchronizeEvent(void* event) const override {
    require_device("cudaEventSynchronize", /*is_operator=*/false);
    if (event != nullptr) {
      host_waits(*static_cast<StreamEvent*>(event));
    }
  }
  void synchronizeDevice(c10::DeviceIndex device) const override {
    require_device("cudaDeviceSynchronize", /*is_operator=*/false);
    require_may_wait();
    host_waits_for_device(device);
  }
  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override {
    device_allocator().recordStream(data, stream);
  }
  double elapsedTime(void* from, void* to, c10::DeviceIndex) const override {
    const auto &start = *static_cast<StreamEvent*>(from), &end = *static_cast<StreamEvent*>(to);
    TORCH_CHECK(start.has_passed() && end.has_passed(), "CUDA error: device not ready");
    return std::chrono::duration<double, std::milli>(end.passed() - start.passed()).count();
  }
};

struct Hooks final : at::CUDAHooksInterface {
  explicit Hooks(at::CUDAHooksArgs) {}
  void init() const override {}
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return settings().devices > 0; }
  bool hasCUDA() const override { return settings().devices > 0; }
  bool hasCUDART() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return settings().devices; }
  int getNumGPUs() const override { return settings().devices; }
  c10::DeviceIndex current_device() const override { return sim::current_device(); }
  c10::DeviceIndex getCurrentDevice() const override { return sim::current_device(); }
  void setCurrentDevice(c10::DeviceIndex index) const override { set_current_device(index); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex index) const override {
    const auto before = sim::current_device();
    set_current_device(index);
    return before;
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex index) const override { return exchangeDevice(index); }
  at::Allocator* getCUDADeviceAllocator() const override { return &device_allocator(); }
  at::Allocator* getPinnedMemoryAllocator() const override { return &pinned_allocator(); }
  bool isPinnedPtr(const void* memory) const override { return is_pinned(memory); }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override { return at::detail::getDefaultCPUGenerator(); }
  at::Generator getNewGenerator(c10::DeviceIndex) const override { return at::detail::createCPUGenerator(); }
  void deviceSynchronize(c10::DeviceIndex device) const override {
    require_device("cudaDeviceSynchronize", /*is_operator=*/false);
    require_may_wait();
    host_waits_for_device(device);
  }
};

C10_REGISTER_GUARD_IMPL(CUDA, Guard)

__attribute__((constructor)) void begin() { install_allocators(); }

}  // namespace
}  // namespace sim

namespace at {
using CUDAHooks = sim::Hooks;
REGISTER_CUDA_HOOKS(CUDAHooks)
}  // namespace at
