//! Points in the work of a device.

use tch::Device;

use crate::device;
use crate::error::{Error, check};
use crate::handle::Handle;
use crate::sys::{self, RawMoment};

/// On the CPU the time when it was taken. On a GPU, which computes later what is queued now, the time when it has done
/// what its current stream held by then: a timed event (`c10::Event`).
#[derive(Debug)]
pub struct Moment(Handle<RawMoment>);

impl Moment {
    /// The present moment of `device`. Does not wait.
    pub fn now(device: Device) -> Result<Self, Error> {
        let handle = Handle::new(sys::vit_moment_free, |out| {
            // SAFETY: `out` is a valid place for the object's pointer.
            let status = unsafe { sys::vit_moment_new(device::index(device), out) };
            check(status, || format!("failed to note the time on {device:?}"))
        })?;
        Ok(Self(handle))
    }

    /// Seconds from `earlier`, a moment of the same device, to this one. An error where a GPU has not come to both yet.
    pub fn seconds_since(&self, earlier: &Self) -> Result<f64, Error> {
        let mut seconds = 0.0;
        // SAFETY: both moments are valid, and `seconds` is a valid place.
        let status =
            unsafe { sys::vit_moment_seconds_since(self.0.as_ptr(), earlier.0.as_ptr(), &raw mut seconds) };
        check(status, || "failed to read how long a device took".into())?;
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
        let start = Moment::now(Device::Cpu).expect("a moment");
        // The time under test, not a wait for something.
        std::thread::sleep(PAUSE);
        let end = Moment::now(Device::Cpu).expect("a moment");
        let most = before.elapsed();
        let seconds = end.seconds_since(&start).expect("seconds");
        assert!(seconds >= PAUSE.as_secs_f64() && seconds <= most.as_secs_f64());
        let back = start.seconds_since(&end).expect("seconds");
        assert!((seconds + back).abs() < 1e-9);
    }
}
