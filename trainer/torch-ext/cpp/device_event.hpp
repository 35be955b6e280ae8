#pragma once
#include <chrono>
#include <variant>

#include <c10/core/Event.h>

namespace vit {

// A point in the work of a device: on the CPU the current time; on others when the current stream
// has finished its work, which is known only then.
class DeviceEvent {
 public:
  static DeviceEvent now(c10::Device device) {
    if (device.is_cpu()) {
      return DeviceEvent(Clock::now());
    }
    // Unlike PyTorch's default flag, this one records the time.
    c10::Event event(device.type(), c10::EventFlag::BACKEND_DEFAULT);
    event.record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
    return DeviceEvent(std::move(event));
  }

  // Seconds from `earlier`, of the same device; negative if it was later. Both must have passed.
  double seconds_since(const DeviceEvent& earlier) const {
    if (const auto* end = std::get_if<c10::Event>(&at_)) {
      return std::get<c10::Event>(earlier.at_).elapsedTime(*end) / 1000.0;
    }
    const auto duration = std::get<Clock::time_point>(at_) - std::get<Clock::time_point>(earlier.at_);
    return std::chrono::duration<double>(duration).count();
  }

 private:
  using Clock = std::chrono::steady_clock;
  using At = std::variant<Clock::time_point, c10::Event>;

  explicit DeviceEvent(At at) : at_(std::move(at)) {}

  At at_;
};

}  // namespace vit
