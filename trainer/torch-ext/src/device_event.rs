//! Events that time the work of a device.

use tch::Device;

use crate::device;
use crate::error::{Error, check};
use crate::handle::Handle;
use crate::sys::{self, RawDeviceEvent};

/// On the CPU, the time when it was recorded. On a GPU, which works asynchronously, the time when
/// it has finished what its current stream held: a timed event (`c10::Event`).
#[derive(Debug)]
pub struct DeviceEvent(Handle<RawDeviceEvent>);

impl DeviceEvent {
    /// Records an event on `device`. Does not wait.
    pub fn now(device: Device) -> Result<Self, Error> {
        let handle = Handle::new(sys::vit_device_event_free, |out| {
            // SAFETY: `out` is a valid place for the object's pointer.
            let status = unsafe { sys::vit_device_event_new(device::index(device), out) };
            check(status, || format!("failed to record the time on {device:?}"))
        })?;
        Ok(Self(handle))
    }

    /// Seconds from `earlier`, of the same device. An error if a GPU has not reached both yet.
    pub fn seconds_since(&self, earlier: &Self) -> Result<f64, Error> {
        let mut seconds = 0.0;
        // SAFETY: both events are valid, and `seconds` is a valid place.
        let status = unsafe {
            sys::vit_device_event_seconds_since(self.0.as_ptr(), earlier.0.as_ptr(), &raw mut seconds)
        };
        check(status, || {
            "failed to read the time between two events of a device".into()
        })?;
        Ok(seconds)
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn the_time_between_two_moments_is_that_which_passed() {
        const PAUSE: Duration = Duration::from_millis(50);
        let before = Instant::now();
        let start = DeviceEvent::now(Device::Cpu).expect("an event");
        // The time under test, not a wait for something.
        std::thread::sleep(PAUSE);
        let end = DeviceEvent::now(Device::Cpu).expect("an event");
        let most = before.elapsed();
        let seconds = end.seconds_since(&start).expect("seconds");
        assert!(seconds >= PAUSE.as_secs_f64() && seconds <= most.as_secs_f64());
        let back = start.seconds_since(&end).expect("seconds");
        assert!((seconds + back).abs() < 1e-9);
    }
}
