// Device events for Rust.
#include "device_event.hpp"

#include "device_index.hpp"
#include "error.hpp"

using vit::guarded;

extern "C" {

// Records an event on a device; `index` is that of a CUDA device, or negative for the CPU.
vit::Status vit_device_event_new(int index, vit::DeviceEvent** out) {
  return guarded([&] { *out = new vit::DeviceEvent(vit::DeviceEvent::now(vit::device_of(index))); });
}

void vit_device_event_free(vit::DeviceEvent* event) {
  guarded([&] { delete event; });
}

vit::Status vit_device_event_seconds_since(const vit::DeviceEvent* event, const vit::DeviceEvent* earlier, double* seconds) {
  return guarded([&] { *seconds = event->seconds_since(*earlier); });
}
}
